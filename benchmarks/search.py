"""Time of a search in 100,000 images, from features of 512 numbers that are kept on the disk.

    python benchmarks/search.py --work WORK --output docs/benchmarks/search.jsonl

Writes grey pictures of 16 x 32 random pixels, whose features are the pixels themselves, divided by
their length: what is measured does not depend on the image tower. Prints and appends a JSON line:

- `store_s`: the first call of `index_images`, which reads, checks and stores all
- `open_s`: a later call, which lists, checks and digests the files, and maps the features
- `map_s`: `load_features` alone
- `answer_s`: answers for 1, 10 and 100 vectors at once, the 10 best of each, with near-duplicates
- `text_s`: a text of 77 ids through a text tower of the size of CLIP B/16, random weights

`--pairs FOLDER ...` counts the pairs of stored features (of contrastive.py) whose cosine reaches
numbers for near-duplicates, and does no more.

Times are medians of the rounds, of the wall and of the processor, and the longest of the wall. On a
machine with other programs, the processor's time tells more.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import statistics
import time

from machine import write_row

SIZE = 16, 32
TOP = 10


def write_pictures(folder: pathlib.Path, count: int) -> None:
    """PNG files, 1,000 a folder; those that are there stay."""
    import numpy as np
    import tensorflow as tf

    for start in range(0, count, 1000):
        part = folder / f"{start // 1000:04}"
        if part.exists():
            continue
        part.mkdir(parents=True)
        pixels = np.random.default_rng(start).integers(0, 256, (1000, *SIZE, 1)).astype("uint8")
        for number, each in enumerate(pixels[: count - start]):
            (part / f"{number:03}.png").write_bytes(tf.io.encode_png(each).numpy())


def pixels_as_features():
    """A model whose features are the pixels of its images, around 0."""
    import keras

    images = keras.Input((*SIZE, 1))
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(images)
    x = keras.layers.Flatten(name="pooling")(x)
    return keras.Model(images, x)


def seconds(function, rounds: int) -> dict[str, float]:
    """Time of a call, wall and processor; the first is not counted."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter(), time.process_time()
        function()
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    wall, processor = zip(*times[1:], strict=True)
    return {
        "wall": round(statistics.median(wall), 4),
        "longest": round(max(wall), 4),
        "processor": round(statistics.median(processor), 4),
    }


def measure(work: pathlib.Path, count: int, rounds: int) -> dict:
    import numpy as np

    import keras_vit
    from keras_vit.image_text import TextConfig, build_text_tower, index_images

    folder, cache, model = work / "pictures", work / "features", pixels_as_features()
    write_pictures(folder, count)
    shutil.rmtree(cache, ignore_errors=True)
    start = time.perf_counter()
    index = index_images(model, folder, cache, batch_size=256)
    store = time.perf_counter() - start
    row = {"images": len(index.files), "width": index.features.shape[1], "top": TOP}
    row["store_s"] = round(store, 1)
    row["open_s"] = seconds(lambda: index_images(model, folder, cache, batch_size=256), rounds)
    row["map_s"] = seconds(lambda: keras_vit.evaluate.load_features(cache), rounds)
    vectors = np.random.default_rng(0).normal(size=(100, row["width"]))
    row["answer_s"] = {
        several: seconds(lambda n=several: index.search_vectors(vectors[:n], TOP), rounds)
        for several in (1, 10, 100)
    }
    tower = build_text_tower(TextConfig(vocabulary_size=49_408, context_length=77, width=512,
                                        depth=12, num_heads=8, mlp_dim=2048))  # fmt: skip
    ids = np.full((1, 77), 49_407, "int32")
    row["text_s"] = seconds(lambda: tower.predict(ids, verbose=0), rounds)
    return row


def count_pairs(folder: pathlib.Path) -> dict:
    """Pairs of stored features by their cosine."""
    import numpy as np

    import keras_vit

    rows = np.array(keras_vit.evaluate.load_features(folder).values)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    reached = {str(limit): int((cosines >= limit).sum()) for limit in (0.9, 0.95, 0.97, 0.98, 0.99)}
    return {"features": folder.name, "pairs": len(cosines), "reached": reached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=pathlib.Path, help="folder for the pictures")
    parser.add_argument("--pairs", type=pathlib.Path, nargs="+", help="folders of features")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if args.pairs:
        for folder in args.pairs:
            write_row(count_pairs(folder), args.output)
        return
    write_row({**measure(args.work, args.images, args.rounds), "rounds": args.rounds}, args.output)


if __name__ == "__main__":
    main()
