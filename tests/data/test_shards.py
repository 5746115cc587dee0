"""Every record is read once per epoch, by one worker, and no worker ends before the others."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.shards import Shards, find_shards, read_shards
from tests.data import shards_process
from tests.workers import run_workers

COUNTS = (10, 0, 3, 7, 1)  # records in each file, 21 in all


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("shards"), 0
    for index, count in enumerate(COUNTS):
        with tf.io.TFRecordWriter(str(folder / f"part-{index}.tfrecord")) as writer:
            for _ in range(count):
                writer.write(str(number).encode())
                number += 1
    return str(folder / "part-*.tfrecord")


def parse(record):
    return tf.strings.to_number(record, tf.int32)


def epochs(pattern, workers, count=2, **options):
    """What each worker reads in its first epochs: `[epoch][worker][batch]`, lists of numbers."""
    shards = find_shards(pattern)
    readers = [
        read_shards(shards, parse, 2 * workers, worker=(index, workers), **options)
        for index in range(workers)
    ]
    return [
        [[batch.numpy().tolist() for batch in reader] for reader in readers] for _ in range(count)
    ]


def flat(lists):
    return [item for part in lists for item in part]


def test_files_are_counted(pattern, tmp_path):
    shards = find_shards(pattern)
    assert shards.counts == COUNTS and shards.num_records == 21
    assert [path[-10] for path in shards.files] == list("01234")
    lines = tmp_path / "lines.txt"
    lines.write_text("5\n6\n")
    text = find_shards([lines], read=tf.data.TextLineDataset)
    assert text.counts == (2,)
    assert [list(batch) for batch in read_shards(text, parse, 4)] == [[5, 6]]


def test_a_slice_holds_its_records_alone(pattern):
    part = find_shards(pattern).slice(8, 20).slice(1, 11)  # 9 to 18, of three files
    assert part.counts == (1, 3, 6) and part.skips == (9, 0, 0) and part.num_records == 10
    reader = read_shards(part, parse, 5, shuffle_buffer=10)
    orders = [flat(batch.numpy().tolist() for batch in reader) for _ in range(4)]
    assert [sorted(order) for order in orders] == [list(range(9, 19))] * 4
    assert len(set(map(tuple, orders))) > 1
    for first, end in ((3, 3), (-1, 2), (0, 22)):
        with pytest.raises(ValueError, match=f"21 records. Received: first={first} and end={end}"):
            find_shards(pattern).slice(first, end)


@pytest.mark.parametrize(("workers", "buffer"), [(1, 0), (2, 6), (3, 6), (6, 0)])
def test_every_record_is_read_once_and_all_have_as_many_steps(pattern, workers, buffer):
    for one_epoch in epochs(pattern, workers, shuffle_buffer=buffer):
        assert sorted(flat(flat(one_epoch))) == list(range(21))
        assert len({len(batches) for batches in one_epoch}) == 1
        sizes = [len(flat(batches)) for batches in one_epoch]
        assert max(sizes) - min(sizes) <= 1
        for batches in one_epoch:  # whole ones first, empty ones last
            assert [len(batch) for batch in batches] == sorted(map(len, batches), reverse=True)


def test_workers_without_records_have_empty_batches(pattern):
    shards = find_shards(find_shards(pattern).files[2])  # of three records
    readers = [read_shards(shards, parse, 5, worker=(index, 5)) for index in range(5)]
    assert [[b.numpy().tolist() for b in r] for r in readers] == [
        [[]],
        [[10]],
        [[]],
        [[11]],
        [[12]],
    ]


@pytest.mark.slow
def test_orders_repeat_and_differ_between_epochs_and_seeds(pattern):
    first = epochs(pattern, 2, count=6, shuffle_buffer=4, seed=5)
    assert first == epochs(pattern, 2, count=6, shuffle_buffer=4, seed=5)
    other = epochs(pattern, 2, count=6, shuffle_buffer=4, seed=6)
    orders = [str(one_epoch) for one_epoch in first + other]
    assert len(set(orders)) == 12
    readers_of_0 = {0 in flat(one_epoch[0]) for one_epoch in first + other}
    assert readers_of_0 == {True, False}  # records go to other workers too
    unshuffled = epochs(pattern, 2)
    assert unshuffled[0] == unshuffled[1]
    assert flat(flat(unshuffled[0])) == list(range(21))


def test_seeds_of_the_process_do_not_count(pattern):
    def order():
        return epochs(pattern, 2, shuffle_buffer=100, seed=3)

    expected = order()
    tf.random.set_seed(5)
    assert order() == expected
    tf.random.set_seed(6)
    assert order() == expected


def test_iterators_that_are_not_read_count_as_epochs(pattern):
    """So that `ResumeTraining` finds the order of a later epoch without reading those before."""
    shards, options = find_shards(pattern), {"shuffle_buffer": 4, "worker": (1, 2)}
    data = read_shards(shards, parse, 4, **options)
    orders = [flat(batch.numpy().tolist() for batch in data) for _ in range(3)]
    again = read_shards(shards, parse, 4, **options)
    iter(again)
    next(iter(again))
    assert flat(batch.numpy().tolist() for batch in again) == orders[2]


def test_each_worker_opens_the_files_of_its_part_alone(pattern):
    shards = find_shards(pattern)
    missing = Shards((*shards.files[:-1], "no such file"), shards.counts)
    first = read_shards(missing, parse, 4, worker=(0, 2))
    assert sorted(flat(batch.numpy().tolist() for batch in first)) == list(range(10))
    with pytest.raises(tf.errors.NotFoundError, match="no such file"):
        list(read_shards(missing, parse, 4, worker=(1, 2)))


def test_whole_batches_alone_where_shapes_must_be_known(pattern):
    for one_epoch in epochs(pattern, 2, shuffle_buffer=4, drop_remainder=True):
        assert [[len(batch) for batch in batches] for batches in one_epoch] == [[2] * 5] * 2
    dataset = read_shards(find_shards(pattern), parse, 4, drop_remainder=True, worker=(1, 2))
    assert dataset.element_spec.shape == (2,)


def test_replicas_of_one_worker_get_a_batch_each(pattern):
    shards = find_shards(pattern)
    devices = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    batch = 4 * len(devices)
    with strategy.scope():
        data = read_shards(shards, parse, batch, shuffle_buffer=4)
    assert int(data.cardinality) == -(-21 // batch)  # steps, as Keras understands it
    for _ in range(2):
        steps = [strategy.experimental_local_results(step) for step in data]
        assert len(steps) == -(-21 // batch)
        assert sorted(flat(part.numpy().tolist() for part in flat(steps))) == list(range(21))


@pytest.mark.slow
def test_two_workers_train_on_uneven_shards_as_one_process_on_the_same_batches(pattern, tmp_path):
    run_workers("tests.data.shards_process", "main", pattern, tmp_path, count=2)
    results = [dict(np.load(tmp_path / f"{index}.npz")) for index in range(2)]
    shards = find_shards(pattern)
    squares = sum(number**2 for number in range(1, 22))
    parts = [
        read_shards(shards, shards_process.parse, 8, shuffle_buffer=100, worker=(index, 2))
        for index in range(2)
    ]
    together = tf.data.Dataset.zip(*parts).map(
        lambda first, second: tf.nest.map_structure(
            lambda a, b: tf.concat([a, b], 0), first, second
        )
    )
    expected = shards_process.train(together)
    for result in results:
        np.testing.assert_array_equal(result["squares"], [squares] * 2)
        np.testing.assert_array_equal(result["val_squares"], [squares] * 2)
        assert result["later"] == squares
        for name, value in expected.items():
            np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name], err_msg=name)


def test_what_cannot_be_read_is_an_error(pattern, tmp_path):
    shards = find_shards(pattern)
    with pytest.raises(ValueError, match=r"no files to read. Received: '/nowhere/\*'"):
        find_shards("/nowhere/*")
    with pytest.raises(ValueError, match=r"one count for each of the 5 files\. Received: 2 counts"):
        find_shards(pattern, counts=(1, 2))
    with pytest.raises(ValueError, match=r"at least one record\. Received: 1 files"):
        Shards(("empty",), (0,))
    with pytest.raises(ValueError, match=r"2 replicas \(2 workers\) cannot share .*=5. Take 4"):
        read_shards(shards, parse, 5, worker=(0, 2))
    with pytest.raises(ValueError, match="no worker 2 of 2: they count from 0 to 1"):
        read_shards(shards, parse, 4, worker=(2, 2))
    with pytest.raises(ValueError, match="21 records make no whole batch of 64 for 2 workers"):
        read_shards(shards, parse, 64, worker=(0, 2), drop_remainder=True)
    cut = tmp_path / "cut.tfrecord"
    cut.write_bytes(pathlib.Path(shards.files[0]).read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"cut.tfrecord is no TFRecord.* record 9 would extend"):
        find_shards([cut])
