"""Segment Anything and OWL-ViT: by this package, transformers and ZeroModels.

Each function returns a step, which gives the outputs by name. Images, points, embeddings and ids
follow a fixed seed, so that all contestants compute the same.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

SAM = "SamModel"
OWL = ("OwlViTForObjectDetection", "Owlv2ForObjectDetection")
POINT, SIZE = (300.0, 500.0), 1024  # of Segment Anything
FILES = {"graph": "saved_model", "litert": "litert", "onnxruntime": "onnx", "openvino": "openvino"}
TEXTS = 3


def ids_of(cell: dict) -> np.ndarray:
    """Ids of three texts, which end in the id of their end."""
    length = 16
    ids = np.random.default_rng(1).integers(1, 40_000, (TEXTS, length)).astype("int32")
    ids[:, 0], ids[:, -1] = 49406, 49407
    return ids


def embeddings() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(1, 64, 64, 256)).astype("float32")


def ours(cell: dict, images: np.ndarray) -> Any:
    is_file = cell["interface"] != "predict" and cell["part"] not in ("decoder", "both")
    shape: dict[str, Any] = {"input_shape": images.shape[1:], "include_preprocessing": is_file}
    if cell["class"] == SAM:
        import keras_vit.segmentation

        sam = keras_vit.segmentation.load_promptable(cell["folder"], **shape)
        if cell["part"] == "encoder":
            pixels = as_pixels(sam.encoder, images)
            return of_model(cell, sam.encoder, pixels, "embeddings")
        prompts = sam.prepare_prompts(embedded(), points=np.array([[POINT]]))
        if cell["part"] == "decoder":
            return of_model(cell, sam.decoder, prompts)

        def both() -> dict[str, np.ndarray]:
            encoded = np.asarray(sam.encoder.predict_on_batch(images))
            return of_one_prompt(
                sam.decoder.predict_on_batch({**prompts, "image_embeddings": encoded})
            )

        return both
    import keras_vit.detection

    model = keras_vit.detection.load_open_vocabulary(cell["folder"], **shape)
    if cell["part"] == "texts":
        return lambda: model.predict(images, token_ids=ids_of(cell))
    from keras_vit.models.text_detector import build_text_detector

    names = [f"text {index}" for index in range(TEXTS)]
    detector = build_text_detector(model.image, model._embed(ids_of(cell)), names)
    return of_model(cell, detector, as_pixels(detector, images))


def as_pixels(model: Any, images: np.ndarray) -> np.ndarray:
    """Pixels in [0, 255] for a model that normalises them."""
    from keras_vit.runtime.model import find_preprocessing

    preprocessing, is_included = find_preprocessing(model)
    if not is_included or preprocessing is None:
        return images
    mean, std = (np.array(x, "float32") for x in preprocessing.per_channel(3))
    return images * std + mean


def embedded() -> Any:
    from keras_vit.segmentation import EmbeddedImages

    return EmbeddedImages(embeddings(), ((SIZE, SIZE),))


def of_one_prompt(outputs: dict) -> dict[str, np.ndarray]:
    """The masks for one prompt, which transformers gives; ours has that for several, too."""
    return {key: np.asarray(outputs[key])[:, 1:] for key in ("masks", "scores")}


def of_model(cell: dict, model: Any, inputs: Any, name: str = "output") -> Any:
    """The step of a Keras model, or of its file."""

    def named(outputs: Any) -> dict[str, np.ndarray]:
        if not isinstance(outputs, dict):
            outputs = {name: outputs}
        outputs = outputs if len(outputs) > 1 else {name: next(iter(outputs.values()))}
        return of_one_prompt(outputs) if cell["part"] == "decoder" else outputs

    if cell["interface"] == "predict":
        return lambda: named(model.predict_on_batch(inputs))
    from keras_vit.export.formats import FORMATS
    from keras_vit.export.several_inputs import export_several_inputs
    from keras_vit.export.verify import synthetic_images

    kind, options = FILES[cell["interface"]], {}
    folder = pathlib.Path(cell["folder"], f"{cell['part']}_{kind}")
    folder.mkdir()
    path = folder / FORMATS[kind].file
    if isinstance(inputs, dict):
        shapes = {"points": (2, 2), "labels": (2,)} if kind in ("litert", "openvino") else None
        report = export_several_inputs(model, path, kind, [inputs], shapes)
        options = {"name": "decode"} if kind == "saved_model" else {}
    else:
        count = {"images": synthetic_images(inputs.shape[1:], 1)} if cell["class"] == SAM else {}
        report = FORMATS[kind].export(model, path, verbose=False, **count)  # 8 take 20 GB
    run = FORMATS[kind].load(report.path, **options)
    return lambda: named(run(inputs))


def theirs(cell: dict, model: Any, pixels: Any) -> Any:
    """Calls of a model of transformers, compiled or not."""
    import torch

    compiled = torch.compile if cell["interface"] == "compiled" else lambda function: function
    if cell["class"] in OWL:
        ids = torch.from_numpy(ids_of(cell)).long()
        function = compiled(model)

        def detect() -> dict[str, np.ndarray]:
            found = function(
                input_ids=ids, pixel_values=pixels, attention_mask=torch.ones_like(ids)
            )
            outputs = {"logits": found.logits, "boxes": found.pred_boxes}
            if "objectness_logits" in found and found.objectness_logits is not None:
                outputs["objectness"] = found.objectness_logits
            return {key: value.numpy() for key, value in outputs.items()}

        return without_gradients(detect)
    encode = compiled(model.vision_encoder)
    decode = compiled(model.forward)
    point = {"input_points": torch.tensor([[[POINT]]]), "input_labels": torch.ones(1, 1, 1).int()}

    def click(encoded: Any) -> dict[str, np.ndarray]:
        found = decode(image_embeddings=encoded, **point)
        return {"masks": found.pred_masks[:, 0].numpy(), "scores": found.iou_scores[:, 0].numpy()}

    if cell["part"] == "encoder":
        return without_gradients(
            lambda: {"embeddings": encode(pixels)[0].permute(0, 2, 3, 1).numpy()}
        )
    if cell["part"] == "decoder":
        given = torch.from_numpy(embeddings()).permute(0, 3, 1, 2).contiguous()
        return without_gradients(lambda: click(given))
    return without_gradients(lambda: click(encode(pixels)[0]))


def without_gradients(step: Any) -> Any:
    import torch

    def run() -> dict[str, np.ndarray]:
        with torch.inference_mode():
            return step()

    return run


def zeromodels(cell: dict, model: Any, images: np.ndarray) -> Any:
    """Inputs of a model of ZeroModels, and its outputs by our names."""
    if cell["class"] in OWL:
        ids = ids_of(cell)
        inputs = {"pixel_values": images, "input_ids": ids, "attention_mask": np.ones_like(ids)}
        return {key: inputs[key] for key in model.input}, {
            "logits": "logits", "boxes": "pred_boxes", "objectness": "objectness_logits",
        }  # fmt: skip
    labels = np.ones((1, 1, 1), "int32")
    inputs = {"pixel_values": images, "input_points": np.array([[[POINT]]], "float32")}
    return inputs | {"input_labels": labels}, {"masks": "pred_masks", "scores": "iou_scores"}
