"""What two workers really send each other in a training step, beside what is counted.

    python benchmarks/exchange.py --width 256 --depth 4 --steps 20

Starts two workers of `MultiWorkerMirroredStrategy` on this machine and asks the kernel how many
bytes went through their own sockets (`TCP_INFO`; Linux), from the end of a first epoch to the end
of a second. Prints one JSON line a worker; `ratio` is measured over counted: what is above 1 is
gRPC's and TensorFlow's envelopes, metrics, and the question before each batch whether anyone still
has data.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys

from scaling import gradient_bytes, sent_bytes
from training_step import start_workers

_TCP_INFO, _BYTES_ACKED = 11, 120  # offset in `struct tcp_info`; bytes received follow


def socket_bytes() -> tuple[int, int]:
    """Bytes that this process has sent and received through all its open TCP connections."""
    sent = received = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(descriptor))
        except OSError:
            continue
        try:
            with socket.socket(fileno=copy) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
        except OSError:  # another kind of file
            continue
        if len(info) >= _BYTES_ACKED + 16:
            acked, got = struct.unpack_from("=QQ", info, _BYTES_ACKED)
            sent, received = sent + acked, received + got
    return sent, received


def work(arguments) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    config = keras_vit.ViTConfig(
        patch_size=8,
        width=arguments.width,
        depth=arguments.depth,
        num_heads=4,
        mlp_dim=4 * arguments.width,
        image_size=16,
        classes=10,
    )
    with strategy.scope():
        model = keras_vit.build_vit(config)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], jit_compile=False)
    counts = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counts.append(socket_bytes())
    )
    images = np.zeros((4 * arguments.steps, 16, 16, 3), "float32")
    labels = np.zeros(len(images), "int32")
    model.fit(images, labels, batch_size=4, epochs=2, verbose=0, callbacks=[count])
    reduced = gradient_bytes(model)
    sent, received = (
        (after - before) / arguments.steps for before, after in zip(*counts, strict=True)
    )
    counted = sent_bytes(reduced, 2)
    row = {
        "worker": strategy.cluster_resolver.task_id,
        "parameters": model.count_params(),
        "steps": arguments.steps,
        "counted_bytes_a_step": counted,
        "sent_bytes_a_step": sent,
        "received_bytes_a_step": received,
        "ratio": round(sent / counted, 4),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        work(arguments)
    else:
        workers = start_workers([sys.executable, *sys.argv], 2)
        sys.exit(max(worker.wait() for worker in workers))


if __name__ == "__main__":
    main()
