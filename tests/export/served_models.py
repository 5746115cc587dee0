"""The models of the test server: versions, warm-up and batching, as in TensorFlow Serving."""

from __future__ import annotations

import concurrent.futures
import functools
import pathlib
import queue
import re
import threading
import time

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
SHAPES = grpc.StatusCode.FAILED_PRECONDITION


class RefusedError(Exception):
    """An answer with an error code of gRPC."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Batching:
    """`batching.config`: merges concurrent requests of one signature."""

    def __init__(self, text):
        found = {key: int(value) for key, value in re.findall(r"(\w+) { value: (\d+) }", text)}
        self.largest = found["max_batch_size"]
        self.timeout = found["batch_timeout_micros"] * 1e-6
        self.threads = found["num_batch_threads"]
        self.allowed = [int(size) for size in re.findall(r"allowed_batch_sizes: (\d+)", text)]
        assert self.allowed[-1] == self.largest  # or the server refuses the file


class Batcher:
    """Runs a signature on batches of the requests that wait for it."""

    def __init__(self, run, settings):
        self.sizes = []  # of all batches, with padding
        self._run, self._settings = run, settings
        self._waiting = queue.SimpleQueue()
        for _ in range(settings.threads):
            threading.Thread(target=self._work, daemon=True).start()

    def __call__(self, inputs):
        size = len(next(iter(inputs.values())))
        if size > self._settings.largest:
            raise RefusedError(
                INVALID, f"Task size {size} is larger than maximum batch {self._settings.largest}"
            )
        future = concurrent.futures.Future()
        self._waiting.put((inputs, size, future))
        return future.result()

    def close(self):
        for _ in range(self._settings.threads):
            self._waiting.put(None)

    def _work(self):
        held = None
        while True:
            first = held or self._waiting.get()
            if first is None:
                return
            held, tasks, total = None, [first], first[1]
            end = time.monotonic() + self._settings.timeout
            while total < self._settings.largest:
                try:
                    task = self._waiting.get(timeout=max(end - time.monotonic(), 0))
                except queue.Empty:
                    break
                if task is None or total + task[1] > self._settings.largest:
                    held = task
                    break
                tasks.append(task)
                total += task[1]
            self._run_batch(tasks, total)

    def _run_batch(self, tasks, total):
        padded = next(size for size in self._settings.allowed if size >= total)
        self.sizes.append(padded)
        try:
            merged = {}
            for name in tasks[0][0]:
                parts = [inputs[name] for inputs, _, _ in tasks]
                parts += [parts[0][:1]] * (padded - total)  # copies of an image pad the batch
                merged[name] = np.concatenate(parts)
            outputs = self._run(merged)
            start = 0
            for _, size, future in tasks:
                future.set_result({k: v[start : start + size] for k, v in outputs.items()})
                start += size
        except ValueError:
            self._fail(tasks, RefusedError(SHAPES, "different shapes and padding is turned off"))
        except Exception as error:  # it fails for all requests of the batch
            self._fail(tasks, error)

    @staticmethod
    def _fail(tasks, error):
        for _, _, future in tasks:
            if not future.done():
                future.set_exception(error)


class Version:
    """A loaded SavedModel; its warm-up requests have run."""

    def __init__(self, path, batching):
        self.number = int(path.name)
        self._loaded = tf.saved_model.load(str(path))
        self._batching = batching
        self.batchers = {}
        for name in self._loaded.signatures if batching else ():
            self.batchers[name] = Batcher(functools.partial(self._call, name), batching)
        self.warmed = 0
        warmup = path / "assets.extra" / "tf_serving_warmup_requests"
        for record in tf.data.TFRecordDataset(str(warmup)) if warmup.exists() else ():
            request = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            request = request.predict_log.request
            inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            self.run(request.model_spec.signature_name, inputs)
            self.warmed += 1

    def signature(self, name):
        if name not in self._loaded.signatures:
            raise RefusedError(INVALID, f'Serving signature key "{name}" not found.')
        return self._loaded.signatures[name]

    def specs(self, signature):
        """Inputs of a signature by name."""
        return self.signature(signature).structured_input_signature[1]

    def run(self, signature, inputs):
        specs = self.specs(signature)
        if set(inputs) != set(specs):
            raise RefusedError(INVALID, f"inputs must be {sorted(specs)}, not {sorted(inputs)}")
        return self.batchers.get(signature, lambda x: self._call(signature, x))(inputs)

    def _call(self, signature, inputs):
        specs = self.specs(signature)
        try:
            tensors = {k: tf.constant(v, specs[k].dtype) for k, v in inputs.items()}
            return {k: v.numpy() for k, v in self.signature(signature)(**tensors).items()}
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise RefusedError(INVALID, str(error)) from error

    def close(self):
        for batcher in self.batchers.values():
            batcher.close()


class Models:
    """The newest version of every model of `models.config`, which is read again with them."""

    def __init__(self, config, batching, poll_seconds):
        self._config, self._batching = pathlib.Path(config), batching
        self.versions = {}
        self._states = {}
        self._ended = threading.Event()
        self._poll_seconds = poll_seconds
        self._look()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def find(self, name, number=None):
        version = self.versions.get(name)
        if version is None or number not in (None, version.number):
            raise RefusedError(
                NOT_FOUND, f"Servable not found for request: {name} {number or 'Latest'}"
            )
        return version

    def states(self, name):
        """States of all versions that were served, the newest first."""
        if name not in self._states:
            raise RefusedError(NOT_FOUND, f"Could not find any versions of model {name}")
        return sorted(self._states[name].items(), reverse=True)

    def close(self):
        self._ended.set()
        self._thread.join()
        for version in self.versions.values():
            version.close()

    def _watch(self):
        while not self._ended.wait(self._poll_seconds):
            self._look()

    def _look(self):
        config = model_server_config_pb2.ModelServerConfig()
        text_format.Parse(self._config.read_text(), config)
        for model in config.model_config_list.config:
            paths = [p for p in pathlib.Path(model.base_path).iterdir() if p.name.isdecimal()]
            newest = max(paths, key=lambda path: int(path.name), default=None)
            old = self.versions.get(model.name)
            if newest is None or (old and old.number == int(newest.name)):
                continue
            states = self._states.setdefault(model.name, {})
            states[int(newest.name)] = "LOADING"
            version = Version(newest, self._batching)
            self.versions[model.name] = version  # from here on, requests get the new one
            states[version.number] = "AVAILABLE"
            if old is not None:
                states[old.number] = "END"
                threading.Timer(1.0, old.close).start()  # requests that have it finish first
