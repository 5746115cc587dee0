"""Classifies image files by TensorFlow Serving's REST interface. Standard library only.

python export/tf_serving/rest_client.py cat.jpg dog.png --model pets
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import pathlib
import time
import urllib.error
import urllib.request

# The server is starting or loading a version, or its queue is full: retry.
RETRIED = (408, 429, 500, 502, 503, 504)


def classify(
    images: list[bytes],
    model: str = "model",
    address: str = "http://localhost:8501",
    signature: str = "serving_default",
    attempts: int = 5,
    timeout: float = 30.0,
) -> list[dict]:
    """Returns a dict of outputs per encoded image; waits 0.2, 0.4, 0.8 ... s between attempts."""
    instances = [{"image_bytes": {"b64": base64.b64encode(image).decode()}} for image in images]
    request = urllib.request.Request(
        f"{address}/v1/models/{model}:predict",
        data=json.dumps({"signature_name": signature, "instances": instances}).encode(),
        headers={"Content-Type": "application/json"},
    )
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.load(response)["predictions"]
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")
            if error.code not in RETRIED or attempt == attempts - 1:
                raise RuntimeError(f"{address}: {error.code} {message}") from error
        except (urllib.error.URLError, TimeoutError, http.client.HTTPException) as error:
            if attempt == attempts - 1:
                raise ConnectionError(f"{address}: {error}") from error
        time.sleep(0.2 * 2**attempt)
    raise ValueError(f"`attempts` must be 1 or more. Received: {attempts}.")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--model", default="model")
    parser.add_argument("--address", default="http://localhost:8501")
    options = parser.parse_args(arguments)
    images = [pathlib.Path(file).read_bytes() for file in options.files]
    for file, found in zip(
        options.files, classify(images, options.model, options.address), strict=True
    ):
        best = zip(found["classes"], found["scores"], strict=True)
        print(file, *(f"{label} {score:.3f}" for label, score in best), sep="\t")


if __name__ == "__main__":
    main()
