"""Trains one Vision Transformer in several processes, on one or several machines.

    python examples/multi_worker.py --local 2              two workers on this machine
    TF_CONFIG=... python examples/multi_worker.py          once on every machine
    srun python examples/multi_worker.py                   under Slurm

Every worker runs this script and reads its own part of the files. All workers have the same
weights after every step. Worker 0 writes the files at the start and the model at the end. After a
crash, the same command resumes training. The images are the 1,797 handwritten digits of
scikit-learn; the accuracy on a held-out fifth is printed. Takes minutes on two cores.
docs/scaling.md describes Kubernetes, network traffic and scaling efficiency.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/multi_worker"))
    parser.add_argument("--local", type=int, help="start this many workers on this machine")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="images per step of all workers")
    parser.add_argument("--smoke", action="store_true", help="one block, 2 epochs")
    args = parser.parse_args()
    if args.local:
        sys.exit(start_workers(args.local))
    strategy = make_strategy()
    is_chief = strategy.cluster_resolver is None or strategy.cluster_resolver.task_id in (0, None)
    train(strategy, is_chief, args)


def start_workers(count):
    """Starts `count` workers with their `TF_CONFIG`; returns the first exit status other than 0."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    arguments = [*sys.argv[1:], "--local", "0"]  # overrides the first --local
    workers = []
    for index in range(count):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        command = [sys.executable, sys.argv[0], *arguments]
        workers.append(subprocess.Popen(command, env=environment))
    try:
        while all(worker.poll() is None for worker in workers):
            time.sleep(0.2)
        failed = [worker.returncode for worker in workers if worker.returncode]
        if not failed:  # one worker has finished, and the others will
            failed = [code for code in (worker.wait() for worker in workers) if code]
    finally:
        for worker in workers:
            worker.kill()
    return failed[0] if failed else 0


def make_strategy():
    """Makes the strategy for the cluster of this process."""
    if "TF_CONFIG" not in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ:
        # One task per machine with all its GPUs; Slurm provides the machines and the task.
        gpus = len(tf.config.list_physical_devices("GPU"))
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=12345, gpus_per_node=gpus, gpus_per_task=gpus, auto_set_gpu=False
        )
        hosts = resolver.cluster_spec().as_dict()
        kind, index = resolver.get_task_info()
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": hosts, "task": {"type": kind, "index": index}}
        )
    keras_vit.runtime.keep_buffers()  # makes steps on processors faster
    if "TF_CONFIG" not in os.environ:
        return tf.distribute.MirroredStrategy()  # the devices of this machine
    keras_vit.distribution.check_cluster()  # names missing workers; TensorFlow would wait
    return tf.distribute.MultiWorkerMirroredStrategy()


def train(strategy, is_chief, args):
    keras.utils.set_random_seed(0)
    folder = args.output / "shards"
    if is_chief:
        write_shards(folder)
    while not (folder / "written").exists():  # all workers share the folder
        time.sleep(0.1)
    size = {"width": 64, "depth": 1 if args.smoke else 4, "num_heads": 4, "mlp_dim": 128}
    images = {"patch_size": 2, "image_size": 8, "channels": 1, "classes": 10}
    config = keras_vit.make_config(**size, **images, position_embedding="sincos_2d")
    with strategy.scope():
        model = keras_vit.build_vit(config, name="digits")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.1, global_clipnorm=1.0)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=not args.smoke)
        shards, held_out = (
            keras_vit.data.find_shards(f"{folder}/{part}-*.tfrecord")
            for part in ("train", "held_out")
        )
        data = keras_vit.data.read_shards(shards, parse, args.batch, shuffle_buffer=2000)
        test = keras_vit.data.read_shards(held_out, parse, args.batch)
    model.fit(
        data,
        epochs=2 if args.smoke else args.epochs,
        validation_data=test,
        shuffle=False,  # the pipeline shuffles
        verbose=2 if is_chief else 0,
        callbacks=[keras_vit.ResumeTraining(args.output / "states")],
    )
    scores = model.evaluate(test, verbose=0, return_dict=True)
    if is_chief:
        model.save(args.output / "model.keras")
        print(f"{strategy.num_replicas_in_sync} replicas, {scores['accuracy']:.2%} of held-out")


def write_shards(folder):
    """Writes the digits to files of unequal length, as in real data sets."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).astype("uint8")  # 0 to 16 in scikit-learn
    options = {"test_size": 0.2, "stratify": digits.target, "random_state": 1}
    train_x, test_x, train_y, test_y = train_test_split(pixels, digits.target, **options)
    for part, images, labels in (("train", train_x, train_y), ("held_out", test_x, test_y)):
        for index, (start, end) in enumerate([(0, 20), (20, 300), (300, len(images))]):
            with tf.io.TFRecordWriter(str(folder / f"{part}-{index}.tfrecord")) as file:
                for image, label in zip(images[start:end], labels[start:end], strict=True):
                    file.write(image.tobytes() + bytes([label]))
    (folder / "written").touch()


def parse(record):
    values = tf.io.decode_raw(record, tf.uint8)
    return tf.reshape(tf.cast(values[:64], tf.float32), (8, 8, 1)), tf.cast(values[64], tf.int32)


if __name__ == "__main__":
    main()
