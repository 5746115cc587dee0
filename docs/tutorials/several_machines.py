# %% [markdown]
# # Train on several machines
#
# The same program runs on every machine and reads its own part of the data. After each step, all
# machines have the same weights. Here two processes on this computer are the machines; in a
# cluster, only the addresses change.
#
# ## The program
#
# The program is plain Keras under `tf.distribute`, with three additions. `check_cluster` reports
# which worker cannot be reached; TensorFlow would wait. Inside `strategy.scope()`, `train_batches`
# gives each worker its own images. `ResumeTraining` continues after a crash.

# %%
import json
import os
import pathlib
import socket
import subprocess
import sys

PROGRAM = """
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_vit

cluster = keras_vit.distribution.check_cluster()
keras_vit.runtime.keep_buffers()  # makes steps on processors faster
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(0)
digits = load_digits()
images = keras_vit.read_arrays(
    (digits.images[..., None] * (255 / 16)).astype("uint8"), digits.target
)
train, test = images.split(0.2)
with strategy.scope():
    config = keras_vit.make_config(
        patch_size=2,
        width=64,
        depth=2,
        num_heads=4,
        mlp_dim=128,
        image_size=8,
        channels=1,
        classes=10,
        position_embedding="sincos_2d",
    )
    model = keras_vit.build_vit(config, name="digits")
    model.compile(
        keras.optimizers.AdamW(2e-3, global_clipnorm=1.0),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # compiling takes longer than these few steps
    )
    batches = keras_vit.data.train_batches(
        train, model, 64, keras_vit.data.Augmentation(crop="none", flip=False)
    )
    test_batches = keras_vit.data.eval_batches(test, model, 120)
model.fit(
    batches,
    epochs=3,
    shuffle=False,
    verbose=0,
    callbacks=[keras_vit.ResumeTraining("checkpoints")],
)
accuracy = model.evaluate(test_batches, verbose=0, return_dict=True)["accuracy"]
if cluster.worker == 0:
    model.save("digits.keras")
    print(f"{strategy.num_replicas_in_sync} workers, {accuracy:.1%} of {test.num_images} digits")
"""
pathlib.Path("worker.py").write_text(PROGRAM)

# %% [markdown]
# ## Start the workers
#
# The variable `TF_CONFIG` tells each process the addresses of all workers and its own index. Set
# it in a script; [several machines](../scaling.md) shows how with Slurm and Kubernetes.


# %%
def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


addresses = [free_address(), free_address()]
workers = []
for index in range(2):
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
    command = [sys.executable, "worker.py"]
    workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
outputs = [worker.communicate()[0] for worker in workers]
assert [worker.returncode for worker in workers] == [0, 0]
print(outputs[0].strip())

# %% [markdown]
# A second run finishes at once: `checkpoints/` says that the three epochs are done. If you kill a
# worker in the middle and start both again, the result is equal bit for bit.
#
# Next: [several machines](../scaling.md) for communication between machines, and
# [resuming](../training.md) for checkpoints.
