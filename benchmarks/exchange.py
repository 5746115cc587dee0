"""Bytes, time and rounding of the gradients that two workers exchange in a training step.

    python benchmarks/exchange.py --width 256 --depth 4 --steps 20
    python benchmarks/exchange.py --width 256 --all-reduce-dtype bfloat16
    python benchmarks/exchange.py seconds --megabytes 22.9
    python benchmarks/exchange.py error --variant vit_ti16

`bytes` (the default) starts two workers of `MultiWorkerMirroredStrategy` on this machine and asks
the kernel how many bytes went through their own sockets (`TCP_INFO`; Linux), from the end of a
first epoch to the end of a second. Prints one JSON line a worker; `ratio` is measured over counted:
what is above 1 is gRPC's and TensorFlow's envelopes, metrics, and the question before each batch
whether anyone still has data.

`seconds`: an all-reduce of so many bytes of float32 between two workers with one thread each, and
nothing else, in float32 and in bfloat16. `seconds` and `processor_seconds` are medians.

`error`: two CPU devices of one process take one step of SGD from the same weights, with gradients
exchanged in float32 and in bfloat16. `relative_error` is the length of the difference of the summed
gradients over the length of the exact ones, of all variables together; `largest_of_a_variable` of
the worst variable, and `angle_degrees` is between the two.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time

from machine import write_row
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


def count_bytes(arguments) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    config = keras_vit.make_config(
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
        options = {"all_reduce_dtype": arguments.all_reduce_dtype}
        model.compile("sgd", loss, metrics=["accuracy"], jit_compile=False, **options)
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
    counted = sent_bytes(reduced, 2) / (2 if arguments.all_reduce_dtype else 1)
    row = {
        "worker": strategy.cluster_resolver.task_id,
        "parameters": model.count_params(),
        "all_reduce_dtype": arguments.all_reduce_dtype or "float32",
        "steps": arguments.steps,
        "counted_bytes_a_step": counted,
        "sent_bytes_a_step": sent,
        "received_bytes_a_step": received,
        "ratio": round(sent / counted, 4),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    sys.stdout.write(json.dumps(row) + "\n")  # at once: the other worker prints too
    sys.stdout.flush()


def time_all_reduce(arguments) -> None:
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    values = tf.ones(int(arguments.megabytes * 1e6 / 4))
    for dtype in ("float32", "bfloat16"):

        def exchange(dtype=dtype):
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.cast(values, dtype)])[0]
            return tf.cast(total, "float32")[0]

        step = tf.function(lambda exchange=exchange: strategy.run(exchange))
        seconds = []
        for _ in range(arguments.steps + 3):  # three to warm up
            start = time.perf_counter(), time.process_time()
            step()
            seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        wall, processor = np.median(seconds[3:], axis=0)
        row = {"what": "seconds", "megabytes": arguments.megabytes, "dtype": dtype}
        row |= {"worker": strategy.cluster_resolver.task_id, "steps": arguments.steps}
        row |= {"seconds": round(float(wall), 4), "processor_seconds": round(float(processor), 4)}
        write_row({**row, "tensorflow": tf.__version__}, None)


def measure_error(arguments) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    (processor,) = tf.config.list_physical_devices("CPU")
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(processor, halves)
    rng = np.random.default_rng(0)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras_vit.create_model(arguments.variant, classes=1000)
    noise = (rng.normal(0, 0.02, w.shape) for w in model.get_weights())  # no head of zeros
    pairs = zip(model.get_weights(), noise, strict=True)
    weights = [(weight + change).astype("float32") for weight, change in pairs]
    images = rng.uniform(0, 255, (4, *model.input_shape[1:])).astype("float32")
    labels = rng.integers(0, 1000, 4)
    gradients = []
    for dtype in (None, "bfloat16"):
        model.set_weights(weights)
        with model.distribute_strategy.scope():
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(100.0), loss, all_reduce_dtype=dtype)
        model.fit(images, labels, batch_size=4, verbose=0)
        pairs = zip(weights, model.get_weights(), strict=True)
        gradients.append([(before - after).ravel() for before, after in pairs])
    norms = [np.linalg.norm(each) for each in gradients[0]]
    errors = [np.linalg.norm(x - y) for x, y in zip(*gradients, strict=True)]
    exact, rounded = (np.concatenate(each) for each in gradients)
    cosine = exact @ rounded / np.linalg.norm(exact) / np.linalg.norm(rounded)
    row = {
        "what": "error",
        "variant": arguments.variant,
        "all_reduce_dtype": "bfloat16",
        "relative_error": float(f"{np.linalg.norm(errors) / np.linalg.norm(norms):.3g}"),
        "largest_of_a_variable": float(
            f"{max(e / n for e, n in zip(errors, norms, strict=True) if n > 1e-4 * max(norms)):.3g}"
        ),
        "angle_degrees": float(f"{np.degrees(np.arccos(min(cosine, 1.0))):.3g}"),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    write_row(row, None)


MEASUREMENTS = {"bytes": count_bytes, "seconds": time_all_reduce, "error": measure_error}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=MEASUREMENTS, default="bytes")
    parser.add_argument("--all-reduce-dtype", help="as for `compile`, of `bytes`")
    parser.add_argument("--megabytes", type=float, default=22.9, help="of `seconds`, in float32")
    parser.add_argument("--variant", default="vit_ti16", help="of `error`")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if "TF_CONFIG" in os.environ or arguments.what == "error":
        MEASUREMENTS[arguments.what](arguments)
    else:
        workers = start_workers([sys.executable, *sys.argv], 2)
        sys.exit(max(worker.wait() for worker in workers))


if __name__ == "__main__":
    main()
