"""Segmentation and detection of digits on photographs, compared with keras-hub's models.

    python benchmarks/dense.py --task detection --output detection.jsonl --pictures pictures/

The images are composed: real handwritten digits (scikit-learn) on parts of photographs that
scikit-learn and scikit-image ship. Test images have other digits (partly of the same writers), and
other parts of the photographs. Every model trains for the same processor seconds of one thread
(without the first step), on the same images from the same seed, with AdamW, one peak learning rate
after 5 % of the time, a cosine schedule, and gradients clipped to one norm, without XLA and without
augmentation:

- `keras_vit`: a ViT from random weights on ViTDet's pyramid, with the all-MLP head or keras-hub's
  RetinaNet;
- `SegFormer` and `RetinaNet, ResNet`: keras-hub's, from random weights, of about as many
  parameters. The heads of both RetinaNets are those of `build_detector`.

With `--network`, the folder that `scripts/real-network` writes, a ViT-S/14 that others trained is
there too: frozen, under a linear and a DPT head at the rates of `keras-vit segment train --freeze`,
or under ViTDet's pyramid. Its patches are resized to 16 pixels, and the images to 128 pixels, so
that it has as many tokens as the ViT from random weights. `--only` names what to train.

Prints a JSON line for each, with mean IoU or COCO's mAP on the test images, and the mean loss in
each tenth of the time. A seed takes twice `--seconds` of one core. What stands in `--output`
is not run again. Needs pillow and `pip install "keras-vision-transformer[benchmarks,detection]"`.
The curves of all rows of a file:

    python benchmarks/dense.py --output detection.jsonl --plot curves.png

The pictures of all models in one, with `--seeds 0`:

    python benchmarks/dense.py --task detection --seeds 0 --pictures pictures/ --sheet sheet.png
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import pathlib
import statistics
import time

import keras
import numpy as np
import PIL.Image
import PIL.ImageDraw
import tensorflow as tf
from machine import require, write_row
from small_data import start_tensorflow, with_error

import keras_vit

SIZE = 64
PATCH = 8
DIGITS = [str(digit) for digit in range(10)]
PACKAGES = ("tensorflow", "keras", "keras-hub")
MEASURES = {
    "segmentation": {"mean_iou": "mean IoU", "pixel_accuracy": "pixels"},
    "detection": {"mean_ap": "mAP", "ap50": "AP at IoU 0.5", "ap75": "AP at IoU 0.75"},
}
# Width, depth and heads of the Transformer, for about as many parameters as the others have.
SIZES = {"segmentation": (128, 6, 4), "detection": (128, 6, 4)}
OTHERS = "ViT-S/14 of others, frozen"
FROZEN_RATES = {"linear": 0.01, "dpt": 0.001}  # of `keras-vit segment train --freeze`
# The default's smallest anchors, of 32 pixels, are larger than the boxes.
DETECTOR = {"max_level": 5, "num_conv_layers": 1, "anchor_size": 2}


def photographs():
    """Real photographs as arrays `(h, w, 3)`."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    return [*load_sample_images().images, data.astronaut(), data.chelsea(), data.rocket()]


def compose(count, seed, test):
    """Photographs with one to three digits each: images, class maps, boxes and labels.

    Returns:
        uint8 images `(B, H, W, 3)`, class maps `(B, H, W)` of 0 (background) and digit + 1, and for
        every image the boxes (left, top, right, bottom) and the digits.
    """
    from sklearn.datasets import load_digits

    rng = np.random.default_rng([seed, test])
    digits, names = load_digits(return_X_y=True)
    kept = np.random.default_rng(0).permutation(len(digits))
    kept = kept[:300] if test else kept[300:]
    sources = photographs()
    images = np.zeros((count, SIZE, SIZE, 3), "uint8")
    maps = np.zeros((count, SIZE, SIZE), "uint8")
    boxes, labels = [], []
    for image, class_map in zip(images, maps, strict=True):
        source = sources[rng.integers(len(sources))]
        half = source.shape[1] * 2 // 3  # the left two thirds are for training
        source = source[:, half:] if test else source[:, :half]
        side = int(rng.uniform(0.6, 1.0) * min(source.shape[:2]))
        y, x = (rng.integers(0, each - side + 1) for each in source.shape[:2])
        part = PIL.Image.fromarray(source[y : y + side, x : x + side]).resize((SIZE, SIZE))
        image[:] = part
        own, own_labels = [], []
        for chosen in rng.choice(kept, rng.integers(1, 4), replace=False):
            side = int(rng.integers(20, 36))
            drawn = PIL.Image.fromarray((digits[chosen].reshape(8, 8) * 15.9).astype("uint8"))
            alpha = np.asarray(drawn.resize((side, side), PIL.Image.Resampling.BICUBIC)) / 255.0
            y, x = rng.integers(0, SIZE - side, 2)
            window = (slice(y, y + side), slice(x, x + side))
            if class_map[window].any():
                continue
            colour = rng.integers(0, 256, 3)
            blended = image[window] * (1 - alpha[..., None]) + colour * alpha[..., None]
            image[window] = np.clip(blended, 0, 255)
            rows, columns = np.nonzero(alpha > 0.5)
            class_map[window][alpha > 0.5] = names[chosen] + 1
            ends = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            own.append(np.add(ends, (x, y, x, y)))
            own_labels.append(int(names[chosen]))
        boxes.append(np.array(own, "float32"))
        labels.append(own_labels)
    return images, maps, boxes, labels


def vit(task):
    """The Transformer, on patches of 8 pixels."""
    width, depth, heads = SIZES[task]
    config = keras_vit.make_config(
        patch_size=PATCH, width=width, depth=depth, num_heads=heads, mlp_dim=4 * width,
        image_size=SIZE, classes=None, pooling=None, include_preprocessing=True,
    )  # fmt: skip
    return keras_vit.build_vit(config)


def resnet(filters):
    """keras-hub's ResNet of one basic block a stage, on pixels in [0, 255]."""
    import keras_hub

    encoder = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[7], stackwise_num_filters=filters,
        stackwise_num_blocks=[1] * 4, stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block", image_shape=(SIZE, SIZE, 3),
    )  # fmt: skip
    x = keras.Input((SIZE, SIZE, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, -1)(x)
    maps = keras.Model(encoder.inputs, encoder.pyramid_outputs)(scaled)
    return keras_vit.models.PyramidModel(x, maps)


def segformer(classes):
    """keras-hub's SegFormer with a MiT-B0 of random weights."""
    import keras_hub

    encoder = keras_hub.models.MiTBackbone(
        layerwise_depths=[2, 2, 2, 2], num_layers=4, layerwise_num_heads=[1, 2, 5, 8],
        layerwise_sr_ratios=[8, 4, 2, 1], max_drop_path_rate=0.0,
        layerwise_patch_sizes=[7, 3, 3, 3], layerwise_strides=[4, 2, 2, 2],
        hidden_dims=[32, 64, 110, 160], image_shape=(SIZE, SIZE, 3),
    )  # fmt: skip
    backbone = keras_hub.models.SegFormerBackbone(encoder, projection_filters=128)
    return scaled(keras_hub.models.SegFormerImageSegmenter(backbone, classes))


def scaled(model):
    """The model on pixels in [0, 255], to logits of every pixel."""
    x = keras.Input((SIZE, SIZE, 3))
    logits = model(keras.layers.Rescaling(1 / 127.5, -1)(x))
    if logits.shape[1:3] != (SIZE, SIZE):
        logits = keras.layers.Resizing(SIZE, SIZE)(logits)
    return keras.Model(x, keras.layers.Activation("linear", dtype="float32")(logits))


class TrainFor(keras.callbacks.Callback):
    """Ends training after some processor seconds, with a cosine schedule; notes the loss."""

    def __init__(self, seconds, rate):
        super().__init__()
        self.seconds, self.rate = seconds, rate
        self.start, self.steps, self.total = None, 0, 0.0
        self.losses = [[] for _ in range(10)]  # of the steps in each tenth of the time

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate = 0.0  # until the first step has started the clock

    def on_train_batch_end(self, batch, logs=None):
        self.start = self.start or time.process_time()
        share = min(1.0, (time.process_time() - self.start) / self.seconds)
        self.steps += 1
        warm = min(1.0, share * 20)
        self.model.optimizer.learning_rate = self.rate * warm * (1 + math.cos(math.pi * share)) / 2
        before, self.total = self.total if batch else 0.0, logs["loss"] * (batch + 1)
        self.losses[min(9, int(10 * share))].append(self.total - before)  # Keras gives the mean
        self.model.stop_training = share >= 1

    def curve(self):
        """The mean loss in each tenth of the time; none where no step ended."""
        return [round(statistics.mean(each), 4) if each else None for each in self.losses]


def fit(model, data, seconds, rate):
    timer = TrainFor(seconds, rate)
    model.fit(data, epochs=10**6, shuffle=False, verbose=0, callbacks=[timer])
    return timer


def frozen(network, head=None):
    """A function from classes to a model on the frozen network, whose image is twice as large."""

    def build(classes):
        backbone = keras_vit.from_pretrained(
            network, input_shape=(2 * SIZE, 2 * SIZE, 3), patch_size=2 * PATCH, include_top=False
        )
        backbone.trainable = False
        if head:
            return keras_vit.segmentation.build_segmenter(backbone, classes, head)
        anchors = {**DETECTOR, "anchor_size": 2 * DETECTOR["anchor_size"]}
        return keras_vit.detection.build_detector(backbone, classes, channels=128, **anchors)

    return build


def contestants(task, network=None):
    """A function from classes to a model, by name."""
    segments = task == "segmentation"

    def build(classes):
        backbone = vit(task)
        if segments:
            pyramid = keras_vit.models.build_pyramid(backbone, 64)
            return keras_vit.segmentation.build_segmenter(pyramid, classes, "mlp")
        return keras_vit.detection.build_detector(backbone, classes, channels=128, **DETECTOR)

    if segments:
        others = {"SegFormer": segformer}
    else:
        others = {
            "RetinaNet, ResNet": lambda classes: keras_vit.detection.build_detector(
                resnet([64, 128, 128, 256]), classes, **DETECTOR
            )
        }
    if network:
        heads = ("linear", "dpt") if segments else (None,)
        others |= {", ".join(filter(None, (OTHERS, head))): frozen(network, head) for head in heads}
    return {"keras_vit": build, **others}


def measure(task, name, seed, options):
    """Trains and evaluates one model, writes its row, and draws its predictions."""
    keras.utils.clear_session()
    images, maps, boxes, labels = compose(options.images, seed, test=False)
    test = compose(options.test_images, 0, test=True)
    keras.utils.set_random_seed(seed)
    classes = len(DIGITS) + (task == "segmentation")
    model = contestants(task, options.network)[name](classes)
    clip = options.clip_norm or None
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.05, global_clipnorm=clip)
    if task == "segmentation":
        names = ["background", *DIGITS]
        sets = [
            keras_vit.segmentation.read_mask_arrays(*each, names)
            for each in ((images, maps), test[:2])
        ]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False)
        gentle = keras_vit.segmentation.MaskAugmentation(scale=(1.0, 1.0), flip=False)
        data = keras_vit.segmentation.mask_batches(
            sets[0], model, options.batch_size, True, gentle, seed=seed
        )
    else:
        sets = [
            keras_vit.detection.read_boxes(pixels, own, kinds, DIGITS)
            for pixels, _, own, kinds in ((images, maps, boxes, labels), test)
        ]
        model.compile(optimizer, jit_compile=False)
        data = keras_vit.detection.box_batches(
            sets[0], model, options.batch_size, True, flip=False, seed=seed
        )
    begin = time.perf_counter()
    rate = rate_of(name, options)
    timer = fit(model, data, options.seconds, rate)
    wall = time.perf_counter() - begin
    if task == "segmentation":
        result = keras_vit.segmentation.evaluate_masks(model, sets[1])
    else:
        result = keras_vit.detection.evaluate_boxes(model, sets[1])
    measures = {each: getattr(result, each) for each in MEASURES[task]}
    row = {
        "task": task, "who": name, "seed": seed, "parameters": model.count_params(),
        "trained": sum(math.prod(each.shape) for each in model.trainable_variables),
        "processor_seconds": options.seconds, "steps": timer.steps, **measures,
        "loss": timer.curve(), "images": options.images, "test_images": options.test_images,
        "batch_size": options.batch_size, "rate": rate, "clip_norm": options.clip_norm,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "wall_seconds_of_fit": round(wall, 1),
        "devices": [each.name for each in tf.config.list_logical_devices()],
        "versions": {each: importlib.metadata.version(each) for each in PACKAGES},
    }  # fmt: skip
    write_row(row, options.output)
    if options.pictures:
        draw(task, model, test[0][:8], picture_of(task, name, seed, options.pictures))


def rate_of(name, options):
    return FROZEN_RATES.get(name.removeprefix(f"{OTHERS}, "), options.rate)


def draw(task, model, images, path):
    """Predicted classes or boxes over images, one beside the other."""
    drawn = []
    if task == "detection":  # keras-hub decodes batches of one known size alone: the model's
        larger = tf.image.resize(images, model.backbone.image_shape[:2]).numpy()
        found = model.predict(larger, batch_size=len(images), verbose=0)
    for index, image in enumerate(images):
        if task == "segmentation":
            classes = keras_vit.segmentation.predict_masks(model, image)
            drawn.append(keras_vit.segmentation.draw_classes(image, classes))
            continue
        picture = PIL.Image.fromarray(image)
        pen = PIL.ImageDraw.Draw(picture)
        for corners, label, confidence in zip(
            *(found[key][index] for key in ("boxes", "labels", "confidence")), strict=True
        ):
            if confidence > 0.3:
                corners = np.clip(corners * SIZE / larger.shape[1], 0, SIZE - 1).tolist()
                pen.rectangle(corners, outline=(255, 255, 0))
                pen.text(corners[:2], DIGITS[int(label)], fill=(255, 255, 0))
        drawn.append(np.asarray(picture))
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.concatenate(drawn, axis=1)).save(path)


def sheet(task, seed, folder, path, network=None):
    """The pictures that there are, one below the other in the order of the table, enlarged."""
    files = [picture_of(task, name, seed, folder) for name in contestants(task, network)]
    rows = [np.asarray(PIL.Image.open(file)) for file in files if file.exists()]
    whole = PIL.Image.fromarray(np.concatenate(rows))
    whole.resize([2 * side for side in whole.size], PIL.Image.Resampling.NEAREST).save(path)


def picture_of(task, name, seed, folder):
    return folder / f"{task}-{name}-{seed}.png".replace(", ", "-").replace("/", "-")


def table(rows, task):
    """Each measure in per cent with its standard error over the seeds, of every model."""
    rows = [row for row in rows if row["task"] == task]
    heads = [task, *MEASURES[task].values(), "parameters", "steps", "seeds"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in dict.fromkeys(row["who"] for row in rows):
        own = [row for row in rows if row["who"] == name]
        cells = [with_error([row[each] for row in own]) for each in MEASURES[task]]
        steps = statistics.mean(row["steps"] for row in own)
        cells += [f"{own[0]['parameters']:,}", f"{steps:.0f}", str(len(own))]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def by_rate(rows, task):
    """The first measure in per cent by peak rate, of the models that were trained at several."""
    rows = [row for row in rows if row["task"] == task and row.get("clip_norm")]
    rates = sorted({row["rate"] for row in rows if not row["who"].startswith(OTHERS)})
    measure, title = next(iter(MEASURES[task].items()))
    head = [f"{task}: {title} by peak rate", *(f"{rate:g}" for rate in rates)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in dict.fromkeys(row["who"] for row in rows if not row["who"].startswith(OTHERS)):
        found = [
            [row[measure] for row in rows if (row["who"], row["rate"]) == (name, rate)]
            for rate in rates
        ]
        cells = [with_error(each) if each else "not run" for each in found]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def plot(rows, path):
    """The loss of every model against the share of its time, one line a seed, one panel a task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = dict.fromkeys(row["task"] for row in rows)
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(5 * len(tasks), 3.6), layout="constrained", squeeze=False
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        names = list(dict.fromkeys(row["who"] for row in rows if row["task"] == task))
        for row in rows:
            if row["task"] == task:
                color = f"C{names.index(row['who'])}"
                points = [(10 * i + 5, loss) for i, loss in enumerate(row["loss"]) if loss]
                axis.plot(*zip(*points, strict=True), color=color, label=row["who"], alpha=0.7)
        axis.set(title=task, xlabel="training time in %", ylabel="training loss", yscale="log")
        axis.grid(alpha=0.3)
        labels = {line.get_label(): line for line in axis.get_lines()}
        axis.legend(labels.values(), labels, fontsize=8)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=tuple(SIZES), default="segmentation")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=420, help="processor time of each model")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--test-images", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rate", type=float, default=5e-4, help="peak learning rate")
    parser.add_argument("--clip-norm", type=float, default=1.0, help="of all gradients; 0 for none")
    parser.add_argument("--network", type=pathlib.Path, help="that others trained")
    parser.add_argument("--only", nargs="+", help="such as SegFormer")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="draw the curves of --output, no more")
    parser.add_argument("--sheet", type=pathlib.Path, help="join the --pictures, no more")
    options = parser.parse_args()
    if options.sheet:
        sheet(options.task, options.seeds[0], options.pictures, options.sheet, options.network)
        return
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.touch()
    lines = options.output.read_text().splitlines() if options.output else []
    rows = [json.loads(line) for line in lines]
    if options.plot:
        plot(rows, options.plot)
        return
    require("scikit-image", "scikit-learn", "keras-hub")
    settings = {"task": options.task, "processor_seconds": options.seconds}
    for name in ("images", "test_images", "batch_size", "clip_norm"):
        settings[name] = getattr(options, name)
    done = {
        (row["who"], row["seed"], row["rate"]) for row in rows if settings.items() <= row.items()
    }
    for seed in options.seeds:
        for name in options.only or contestants(options.task, options.network):
            if (name, seed, rate_of(name, options)) not in done:
                measure(options.task, name, seed, options)


if __name__ == "__main__":
    start_tensorflow()
    main()
