"""Predicts the images of an archive, or copies them into TFRecord files, with Apache Beam.

    python export/beam/archive.py predict 'archive/*.tar' --model serving/pets/1 --output found
    python export/beam/archive.py records 'photos/*/*.jpg' --output records

Further flags go to Beam as they are, such as `--runner FlinkRunner --direct_num_workers 4`;
README.md in this folder has examples. Needs apache-beam, tensorflow, pillow and pyarrow, here and
on the workers, but not keras_vit.

The archive is divided into parts: a tar, a TFRecord file, or some image files. A worker reads,
predicts and writes a part; its files have names of their own, and appear as a whole. So a part that
is repeated, because a worker was killed, replaces what was there, and the same command continues
with the parts that are missing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import sys
import tarfile
import tempfile
import threading
import uuid

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions

IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
LABELS = (".cls", ".class", ".label")  # members of a tar of WebDataset
ATTEMPT = "KERAS_VIT_ARCHIVE_ATTEMPT"
SIGNATURE = "tolerant"  # of `keras_vit.export_saved_model`: an unreadable image gives `valid` false
RECORDS = "keras_vit records 1"  # the format that `keras_vit.data.read_record_folder` reads
# An image on its way: part, name, label, problem or None, (height, width). After the last one of a
# part comes a mark without a name, whose label is the number of images before it. Between workers
# it is a plain tuple, which Beam encodes.
Key = collections.namedtuple("Key", "part name label problem size")


class ReadPart(beam.DoFn):
    """Reads the images of a part, each with its size or what is wrong with it."""

    def __init__(self, kind: str, decodes: bool):
        self.kind, self.decodes = kind, decodes

    def process(self, part):
        number, paths = part
        count = 0
        for path in paths:
            for name, data, label, problem in READERS[self.kind](path):
                size, found = (0, 0), problem
                if problem is None:
                    size, found = examine(data, self.decodes)
                yield (number, name, label, found, size), data if found is None else b""
                count += 1
        yield (number, None, count, None, None), b""


def read_file(path):
    """The image of a file, whose class is the name of its folder."""
    label = os.path.basename(os.path.dirname(path))
    try:
        with FileSystems.open(path, compression_type="auto") as file:
            yield path, file.read(), label, None
    except Exception as error:  # of many file systems
        yield path, b"", label, f"cannot be opened: {error!r:.200}"


class Member(tarfile.TarInfo):
    """A member of a tar, whose end is an empty block: `tarfile` takes a cut header for it too."""

    @classmethod
    def fromtarfile(cls, tarfile_):
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError) as error:
            raise EOFError("the empty block at its end is missing") from error


def read_tar(path):
    """The images of a tar, in which members of one name up to the first dot follow one another."""
    last, image, label = None, None, None
    try:
        with (
            FileSystems.open(path) as file,
            tarfile.open(fileobj=file, mode="r|*", tarinfo=Member) as tar,
        ):
            for member in tar:
                folder, base = os.path.split(member.name)
                stem, _, ending = base.partition(".")
                if not member.isreg() or not stem:
                    continue
                if (folder, stem) != last and image is not None:
                    yield *image, label, None
                if (folder, stem) != last:
                    last, image, label = (folder, stem), None, None
                ending = f".{ending.lower()}"
                if ending in IMAGES and image is None:
                    image = f"{path}:{member.name}", tar.extractfile(member).read()
                elif ending in LABELS:
                    label = tar.extractfile(member).read().decode("utf-8", "replace").strip()
        if image is not None:
            yield *image, label, None
    except Exception as error:
        yield path, b"", None, f"is cut off, or no tar: {error!r:.200}"


def read_records(path):
    """The images of a TFRecord file: the features "image" and, if it is there, "label"."""
    import tensorflow as tf

    number = -1
    try:
        for number, record in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator()):
            features = tf.train.Example.FromString(record).features.feature
            image = features["image"].bytes_list.value
            label = features["label"].int64_list.value
            problem = None if image else "has no feature 'image'"
            yield f"{path}:{number}", (image or [b""])[0], label[0] if label else None, problem
    except Exception as error:
        yield path, b"", None, f"is damaged after record {number}: {error!r:.200}"


READERS = {"files": read_file, "tars": read_tar, "records": read_records}


def examine(data, decodes):
    """Height and width of an image, and what is wrong with it, or None."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if decodes:
                image.load()
            return (image.height, image.width), None
    except Exception as error:
        return (0, 0), f"cannot be decoded: {error!s:.100}" if data else "is empty (0 bytes)"


class SavedModelHandler(ModelHandler):
    """Computes the outputs of an exported SavedModel for encoded images, for `RunInference`."""

    def __init__(self, path: str, batch_size: int, outputs: tuple[str, ...], threads: int | None):
        super().__init__(min_batch_size=batch_size, max_batch_size=batch_size)
        self.path, self.outputs, self.threads = path, outputs, threads

    def load_model(self):
        import tensorflow as tf

        if self.threads:
            with contextlib.suppress(RuntimeError):  # TensorFlow has begun to compute here
                tf.config.threading.set_intra_op_parallelism_threads(self.threads)
        return tf.saved_model.load(self.path)

    def run_inference(self, batch, model, inference_args=None):
        import tensorflow as tf

        found = model.signatures[SIGNATURE](image_bytes=tf.constant(list(batch), tf.string))
        columns = {name: found[name].numpy() for name in ("valid", *self.outputs)}
        return [{name: column[i] for name, column in columns.items()} for i in range(len(batch))]

    def get_num_bytes(self, batch):
        return sum(map(len, batch))


class WriteParts(beam.DoFn):
    """Writes each part when its mark comes: what is kept, and lists of what is not.

    Yields the number of the part, when the last of its files, the summary, is there.
    """

    def __init__(self, output: str, count: int, write, judge):
        self.output, self.count, self.write, self.judge = output, count, write, judge

    def start_bundle(self):
        self.rows = collections.defaultdict(list)

    def process(self, element):
        key, value = Key(*element[0]), element[1]
        if key.name is not None:
            self.rows[key.part].append((key, value))
            return
        rows = self.rows.pop(key.part, [])
        if len(rows) != key.label:
            raise RuntimeError(f"Part {key.part} has {key.label} images, and {len(rows)} came.")
        kept, others = [], {"unreadable": [], "filtered": []}
        for row, value in rows:
            kind, reason = self.judge(row, value)
            if kind is None:
                kept.append((row, value))
            else:
                others[kind].append({"name": row.name, "reason": reason})
        summary = {"images": len(rows), "kept": len(kept)}
        summary |= self.write(kept, self.output, key.part, self.count)
        for kind, listed in others.items():
            lines = "".join(json.dumps(each) + "\n" for each in listed)
            write_whole(f"{self.output}/{kind}/{key.part:05}.jsonl", lines.encode())
            summary[kind] = len(listed)
            Metrics.counter("archive", kind).inc(len(listed))
        write_whole(part_file(self.output, key.part), json.dumps(summary).encode())
        Metrics.counter("archive", "images").inc(len(rows))
        Metrics.counter("archive", "kept").inc(len(kept))
        Metrics.counter("archive", "parts").inc()
        yield key.part

    def finish_bundle(self):
        if self.rows:
            raise RuntimeError(
                f"The runner has separated images of the parts {sorted(self.rows)} from their end."
            )


def write_whole(path: str, data: bytes) -> None:
    """Writes a file under another name first, so that nobody sees a part of it."""
    unfinished = f"{path}.{uuid.uuid4().hex}.unfinished"
    with FileSystems.create(unfinished, compression_type="uncompressed") as file:
        file.write(data)
    if not os.path.exists(path) and FileSystems.exists(path):  # of an object store
        FileSystems.delete([path])
    FileSystems.rename([unfinished], [path])


def part_file(output: str, part: int) -> str:
    return f"{output}/parts/{part:05}.json"


def example_bytes(features) -> bytes:
    """A `tf.train.Example` of bytes, integers and lists of floats or of bytes."""
    import tensorflow as tf

    def feature(value):
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        if isinstance(value, bytes) or (len(value) and isinstance(value[0], bytes)):
            values = [value] if isinstance(value, bytes) else value
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    named = {name: feature(value) for name, value in features.items()}
    example = tf.train.Example(features=tf.train.Features(feature=named))
    return example.SerializeToString(deterministic=True)


def write_records(path: str, records) -> int:
    """Writes a TFRecord file, here first; returns its bytes."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/0") as file:
            for record in records:
                file.write(record)
        with open(f"{folder}/0", "rb") as file:
            data = file.read()
    write_whole(path, data)
    return len(data)


def write_predictions(kept, output, part, count, form, outputs):
    """Writes the predictions of a part as Parquet or TFRecord."""
    path = f"{output}/predictions-{part:05}-of-{count:05}.{form}"
    if form == "tfrecord":
        rows = (
            {"name": k.name.encode(), "height": k.size[0], "width": k.size[1]}
            | {name: value[name].tolist() for name in outputs}
            for k, value in kept
        )
        write_records(path, map(example_bytes, rows))
        return {}
    import pyarrow
    import pyarrow.parquet

    columns = {"name": pyarrow.array([k.name for k, _ in kept], pyarrow.string())}
    for axis, name in enumerate(("height", "width")):
        columns[name] = pyarrow.array([k.size[axis] for k, _ in kept], pyarrow.int32())
    for name in outputs:
        of = pyarrow.string() if name == "classes" else pyarrow.float32()
        values = [value[name].tolist() for _, value in kept]
        if name == "classes":
            values = [[each.decode() for each in row] for row in values]
        columns[name] = pyarrow.array(values, pyarrow.list_(of))
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    write_whole(path, file.getvalue())
    return {}


def judge_prediction(key, value, limits):
    """Whether an image is unreadable or filtered, and why; or (None, None)."""
    if key.problem is not None or not value["valid"]:
        return "unreadable", key.problem or "cannot be decoded"
    sides = sorted(key.size)
    if sides[0] < limits["min_side"]:
        return "filtered", f"{sides[0]} pixels on the shorter side"
    if sides[1] > limits["max_aspect"] * sides[0]:
        return "filtered", f"{sides[1] / sides[0]:.2f} times as long as wide"
    if value["scores"][0] < limits["min_score"]:
        return "filtered", f"score {value['scores'][0]:.4f}"
    found = value["classes"][0].decode()
    if limits["keep_classes"] and found not in limits["keep_classes"]:
        return "filtered", f"class {found}"
    return None, None


def judge_record(key, value, labels):
    """As `judge_prediction`, of images that are copied."""
    if key.problem is not None:
        return "unreadable", key.problem
    if label_of(key, labels) is None:
        return "unreadable", f"has no label of {len(labels)} classes: {key.label!r:.100}"
    return None, None


def label_of(key, labels):
    """Index of the class of an image: of its name, or a number."""
    if key.label in labels:
        return labels.index(key.label)
    try:
        number = int(key.label)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < len(labels) else None


def write_images(kept, output, part, count, labels):
    """Writes the images of a part as they are, as `keras-vit records` does."""
    name = f"images-{part:05}-of-{count:05}.tfrecord"
    found = [label_of(key, labels) for key, _ in kept]
    rows = ({"image": data, "label": n} for (_, data), n in zip(kept, found, strict=True))
    size = write_records(f"{output}/{name}", map(example_bytes, rows))
    return {"file": name, "bytes": size, "classes": dict(collections.Counter(found))}


def find_parts(patterns, per_part, shuffle_seed):
    """The kind of the files, and lists of them: some images, or one tar or TFRecord file each."""
    found = [meta.path for match in FileSystems.match(patterns) for meta in match.metadata_list]
    endings = {".tar": "tars", ".tfrecord": "records", **dict.fromkeys(IMAGES, "files")}
    kinds = collections.Counter(
        endings.get(os.path.splitext(path)[1].lower(), path) for path in found
    )
    if len(kinds) != 1 or next(iter(kinds)) not in READERS:
        shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(5))
        sys.exit(
            f"{', '.join(patterns)}: files of one kind are expected, images ({', '.join(IMAGES)}), "
            f".tar or .tfrecord. Received: {shown or 'no files'}. Change the patterns."
        )
    (kind,) = kinds
    found = sorted(set(found))
    if kind != "files":
        return kind, [[path] for path in found]
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(found)
    return kind, [found[start : start + per_part] for start in range(0, len(found), per_part)]


def prepare_output(output, plan):
    """Creates the folders, or checks that the parts that are there are of the same plan."""
    path, text = f"{output}/plan.json", json.dumps(plan, indent=1)
    if FileSystems.exists(path):
        with FileSystems.open(path, compression_type="uncompressed") as file:
            if file.read().decode() != text:
                sys.exit(f"{output} holds parts of other images or settings. Choose a new folder.")
        return
    for name in ("parts", "unreadable", "filtered"):
        if not FileSystems.exists(f"{output}/{name}"):
            FileSystems.mkdirs(f"{output}/{name}")
    write_whole(path, text.encode())


def find_missing(output, count):
    """Numbers of the parts that have no summary."""
    (match,) = FileSystems.match([f"{output}/parts/*.json"])
    done = {os.path.basename(meta.path) for meta in match.metadata_list}
    return [part for part in range(count) if f"{part:05}.json" not in done]


def run(options, beam_flags, parts, steps):
    """Runs the pipeline over the parts that are missing, and prints its metrics."""
    attempt = int(os.environ.get(ATTEMPT, 1))
    missing = find_missing(options.output, len(parts))
    if not missing:
        return
    if attempt > 1:
        print(f"{len(missing)} of {len(parts)} parts are missing and repeated.", flush=True)

    def repeat(error):
        print(f"The pipeline ended: {str(error)[-500:]}", file=sys.stderr, flush=True)
        if attempt == options.attempts:
            print("Parts are missing. The same command continues.", file=sys.stderr, flush=True)
            os._exit(1)
        os.environ[ATTEMPT] = str(attempt + 1)
        os.execv(sys.executable, [sys.executable, *sys.argv])

    def watch(thread):
        """Repeats what is missing where the DirectRunner would wait for a killed worker forever."""
        if "Worker subprocess exited" in str(thread.exc_value):
            repeat(thread.exc_value)
        threading.__excepthook__(thread)

    threading.excepthook = watch
    try:
        flags = ["--default_sdk_harness_log_level=WARNING", *beam_flags]
        pipeline = beam.Pipeline(options=PipelineOptions(flags))
        todo = [(part, parts[part]) for part in missing]
        steps(pipeline | beam.Create(todo) | beam.Reshuffle())
        result = pipeline.run()
        result.wait_until_finish()
    except Exception as error:  # of a worker, or of the runner because of one
        repeat(error)
    found = result.metrics().query(beam.metrics.MetricsFilter())
    for each in found["counters"]:
        name = each.key.metric.name
        if each.key.metric.namespace == "archive" or name == "num_inferences":
            print(f"{name}: {each.committed or each.attempted}")


def read_summaries(output, count):
    summaries = []
    for part in range(count):
        with FileSystems.open(part_file(output, part)) as file:
            summaries.append(json.load(file))
    return summaries


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("predict", "records"):
        each = commands.add_parser(name)
        each.add_argument("input", nargs="+", help="patterns of images, tars or TFRecord files")
        each.add_argument("--output", required=True, help="folder to write to, also of a store")
        each.add_argument("--per-part", type=int, default=1_000, help="image files in a part")
        each.add_argument("--attempts", type=int, default=3, help="runs until no part is missing")
        each.add_argument("--labels", help="text file with one class per line (records)")
        each.add_argument("--seed", type=int, default=0, help="of the order of files (records)")
    predict = commands.choices["predict"]
    predict.add_argument("--model", required=True, help="a version of export_saved_model")
    predict.add_argument("--batch-size", type=int, default=64)
    predict.add_argument("--threads", type=int, help="of TensorFlow in each worker")
    predict.add_argument("--form", default="parquet", choices=("parquet", "tfrecord"))
    predict.add_argument(
        "--outputs", nargs="+", default=("classes", "scores"),
        choices=("classes", "scores", "probabilities", "logits", "features"),
    )  # fmt: skip
    predict.add_argument("--min-side", type=int, default=0, help="pixels of the shorter side")
    predict.add_argument("--max-aspect", type=float, default=1e9, help="longer by shorter side")
    predict.add_argument("--min-score", type=float, default=0.0, help="of the first class")
    predict.add_argument("--keep-classes", nargs="+", default=(), help="keep these alone")
    options, beam_flags = parser.parse_known_args(arguments)

    copies = options.command == "records"
    kind, parts = find_parts(options.input, options.per_part, options.seed if copies else None)
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    chosen = {k: v for k, v in vars(options).items() if k not in ("attempts", "threads", "input")}
    if copies:
        labels = find_labels(options.labels, kind, parts)
        chosen["labels"] = labels
    elif b"tolerant" not in read_whole(f"{options.model}/saved_model.pb"):
        sys.exit(f"{options.model} has no signature {SIGNATURE!r}. Export it again with keras_vit.")
    prepare_output(options.output, {"parts": len(parts), "sha256": digest, **chosen})

    if copies:
        write = functools.partial(write_images, labels=labels)
        judge = functools.partial(judge_record, labels=labels)
    else:
        names = ("min_side", "max_aspect", "min_score", "keep_classes")
        judge = functools.partial(
            judge_prediction, limits={name: getattr(options, name) for name in names}
        )
        write = functools.partial(
            write_predictions, form=options.form, outputs=tuple(options.outputs)
        )
        wanted = tuple(dict.fromkeys((*options.outputs, "classes", "scores")))
        handler = SavedModelHandler(options.model, options.batch_size, wanted, options.threads)

    def steps(todo):
        images = todo | beam.ParDo(ReadPart(kind, copies))
        if not copies:
            images |= RunInference(KeyedModelHandler(handler))
        images | beam.ParDo(WriteParts(options.output, len(parts), write, judge))

    run(options, beam_flags, parts, steps)
    summaries = read_summaries(options.output, len(parts))
    names = ("images", "kept", "unreadable", "filtered")
    totals = {name: sum(each[name] for each in summaries) for name in names}
    index = {"parts": len(parts), **totals}
    if copies:
        rows = [{"file": s["file"], "records": s["kept"], "bytes": s["bytes"]} for s in summaries]
        counts = [sum(s["classes"].get(str(n), 0) for s in summaries) for n in range(len(labels))]
        index |= {"format": RECORDS, "class_names": labels, "images_of_classes": counts}
        # `read_record_folder` believes no other number than that of the records.
        index |= {"files": rows, "images": totals["kept"], "images_read": totals["images"]}
    write_whole(f"{options.output}/index.json", json.dumps(index, indent=1).encode())
    print(json.dumps(totals))


def read_whole(path: str) -> bytes:
    with FileSystems.open(path, compression_type="uncompressed") as file:
        return file.read()


def find_labels(path, kind, parts) -> list[str]:
    """Names of the classes: of a file, or of the folders of image files."""
    if path is not None:
        return read_whole(path).decode("utf-8-sig").split("\n")
    if kind != "files":
        sys.exit("--labels must name the classes, one per line, where the images are no files.")
    return sorted({os.path.basename(os.path.dirname(file)) for part in parts for file in part})


if __name__ == "__main__":
    main()
