"""Makes the pages of docs/trust.md from simulated textile: what they say, and how they look.

    scripts/real-network FOLDER
    python examples/trust.py FOLDER --output trust

A linear classifier of textile on the features of a ViT-S/14 is calibrated and lets itself abstain;
5 % of its labels are exchanged and looked for; images to label are suggested; three labels an
image get thresholds; and pictures of a camera that is out of focus are noticed. With Chromium on
the PATH, `--pictures FOLDER` writes the six pictures of the page. Takes 5 minutes on two cores.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess

import keras
import numpy as np
import PIL.Image
import PIL.ImageFilter
from sklearn.datasets import load_sample_images
from sklearn.linear_model import LogisticRegression

import keras_vit
from keras_vit.report.page import Section, render_page
from keras_vit.trust.pages import render_grid

# The parts of the pages that are shown: page, title of a section or "" for all, and height.
SHOWN = {
    "calibration": ("result", "Calibration", 880),
    "abstention": ("abstention", "", 960),
    "labels": ("labels", "Labels that do not fit", 700),
    "suggestions": ("suggestions", "", 700),
    "several-labels": ("several", "Scores per label", 500),
    "drift": ("drift", "", 860),
}


def exchanged(images, share, seed=0):
    """Images with a share of their labels replaced by another class."""
    random = np.random.default_rng(seed)
    labels, count = np.asarray(images.labels), images.num_classes
    wrong = random.random(len(labels)) < share
    others = (labels + random.integers(1, count, len(labels))) % count
    table = [("file", "label")] + [
        (name, images.class_names[k])
        for name, k in zip(images.file_names(), np.where(wrong, others, labels), strict=True)
    ]
    return table, wrong


def write_table(path, rows):
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return path


def with_labels(images, path):
    """The pictures with three labels: a defect, over the whole picture, or small."""
    rows = [("file", "defect", "whole", "small")]
    for name, k in zip(images.file_names(), images.labels, strict=True):
        kind = images.class_names[k]
        has = (kind != "nominal", kind == "global", kind == "local")
        rows.append((name, *(str(int(each)) for each in has)))
    return keras_vit.data.read_csv(write_table(path, rows), task="multi_label")


def label_model(network, images, folder):
    """A head of logistic regressions, one a label, on the features of the network."""
    features = keras_vit.evaluate.store_features(network, images, folder)
    x, labels = np.asarray(features.values).reshape(images.num_images, -1), np.array(images.labels)
    fits = [LogisticRegression(C=1.0, max_iter=1000).fit(x, has) for has in labels.T]
    model = keras_vit.adapt_model(network, images.num_classes)
    kernel, bias = (np.concatenate([getattr(fit, part) for fit in fits]) for part in
                    ("coef_", "intercept_"))  # fmt: skip
    model.layers[-1].set_weights([kernel.T, bias])
    return model


def photographs(class_names):
    """Eight squares of the two photographs of scikit-learn, a temple and a flower."""
    squares = [
        image[y : y + 210, x : x + 210]
        for image in load_sample_images().images
        for y in (0, 210)
        for x in (0, 420)
    ]
    return keras_vit.read_arrays(np.stack(squares), [0] * len(squares), class_names)


def out_of_focus(images):
    """The pictures of a set, blurred."""
    filter = PIL.ImageFilter.GaussianBlur(2)
    pixels = [PIL.Image.open(name).convert("RGB").filter(filter) for name in images.file_names()]
    return keras_vit.read_arrays(np.stack(pixels), images.labels, images.class_names)


def write_abstention(model, images, foreign, path):
    """A page of pictures with their possible classes and their typicality."""
    from keras_vit.trust.abstaining import predict_features

    names, cards, sections = np.array(images.class_names), [], []
    for title, each in (("Like the held-out pictures", images), ("Of another kind", foreign)):
        features, shares, _ = predict_features(model, each, None, 64, False)
        outputs = model.abstention.outputs(shares, features)
        found = {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}
        order = np.argsort(found["prediction_set"].sum(axis=1), kind="stable")
        cards = []
        for i in order[np.linspace(0, len(order) - 1, 5).round().astype(int)]:
            word = "accepted" if found["accepted"][i] else "not accepted"
            possible = "possible: " + ", ".join(names[found["prediction_set"][i]])
            cards.append((int(i), [word, f"typicality {found['typicality'][i]:.2f}", possible]))
        sections.append(Section(title, render_grid(each, cards)))
    path.write_text(render_page("Pictures and answers", sections, str(model.abstention)))


def photograph(page, title, height, path):
    """A picture of a section of a page."""
    text = page.read_text()
    if title:
        sections = re.findall(r"<section id=.*?</section>", text, re.DOTALL)
        (chosen,) = (each for each in sections if f"<h2>{title}</h2>" in each)
        first = text.index(sections[0])
        text = text[:first] + chosen + text[text.rindex("</section>") + len("</section>") :]
    copy = path.with_suffix(".html")
    copy.write_text(text)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    words = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size=1200,{height}"]
    shot = path.with_suffix(".png")
    words += [f"--screenshot={shot.resolve()}", copy.resolve().as_uri()]
    subprocess.run([program, *words], check=True, capture_output=True)
    PIL.Image.open(shot).convert("RGB").resize((1000, height * 5 // 6)).save(path, quality=80)
    copy.unlink()
    shot.unlink()


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder of `scripts/real-network`")
    parser.add_argument("--output", type=pathlib.Path, default="trust", help="folder to write to")
    parser.add_argument("--pictures", type=pathlib.Path, help="folder of the pictures of the page")
    arguments = parser.parse_args(words)
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)

    images, _ = keras_vit.read_folder(arguments.folder / "textile").split(0.4)
    train, rest = images.split(0.6)
    held_out, test = rest.split(0.5)
    network = keras_vit.from_pretrained(str(arguments.folder / "network"))
    features = output / "features"
    model = keras_vit.train.fit_probe(network, train, test, features, settings=[1.0]).model
    keras_vit.trust.calibrate(model, held_out)
    print(model.calibration)
    predictions = keras_vit.evaluate.predict_set(model, test)
    keras_vit.report.write_result_page(output / "result.html", model, predictions)

    keras_vit.trust.fit_abstention(model, held_out)
    print(model.abstention)
    write_abstention(model, test, photographs(test.class_names), output / "abstention.html")

    table, wrong = exchanged(train, 0.05)
    mixed = keras_vit.data.read_csv(write_table(output / "mixed.csv", table))
    found = keras_vit.trust.check_labels(network, mixed, features / "labels")
    first = np.mean([wrong[each.position] for each in found[:20]])
    print(f"exchanged labels among the first 20: {first:.0%}, among all {wrong.mean():.0%}")
    keras_vit.trust.write_labels(found, mixed, output)

    known, new = train.split(0.8)
    chosen = keras_vit.trust.suggest_images(network, new, 24, features / "new", known)
    keras_vit.trust.write_suggestions(chosen, new, output)

    labelled = [with_labels(each, output / f"{name}.csv")
                for name, each in (("held_out", held_out), ("test", test))]  # fmt: skip
    several = label_model(network, with_labels(train, output / "train.csv"), features / "several")
    keras_vit.trust.calibrate(several, labelled[0])
    keras_vit.trust.fit_thresholds(several, labelled[0], precision=0.8)
    print(several.calibration)
    predictions = keras_vit.evaluate.predict_targets(several, labelled[1])
    keras_vit.report.write_result_page(output / "several.html", several, predictions)

    blurred = out_of_focus(test)
    drift = keras_vit.trust.compare_images(model, held_out, blurred)
    print(f"{drift.shifts[0].rejected[0]:.0%} of the blurred pictures are not accepted")
    drift.write_page(output / "drift.html", blurred)
    if arguments.pictures is not None:
        for name, (page, title, height) in SHOWN.items():
            path = arguments.pictures / f"trust-{name}.jpg"
            photograph(output / f"{page}.html", title, height, path)


if __name__ == "__main__":
    main()
