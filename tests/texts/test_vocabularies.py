import struct
import time

import pytest

from keras_vit.errors import CheckpointError
from keras_vit.texts.tokenizer import load_tokenizer
from keras_vit.texts.vocabularies import find_vocabulary, read_vocabulary


def message(*fields):
    """A message of protocol buffers from pairs of a number and a value."""
    found = b""
    for number, value in fields:
        if isinstance(value, bytes):
            found += bytes([number << 3 | 2]) + varint(len(value)) + value
        elif isinstance(value, float):
            found += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            found += varint(number << 3) + varint(value)
    return found


def varint(value):
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def model(pieces, **trainer):
    rows = [message((1, name.encode()), (2, score), (3, kind)) for name, score, kind in pieces]
    parts = [(1, row) for row in rows]
    parts.append((2, message((3, trainer.get("kind", 1)), (40, 2))))
    parts.append((3, message((1, b"identity"), (3, 1), (4, 1), (5, 1))))
    return message(*parts)


SPECIAL = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2)]


LETTERS = [(letter, -4.0, 1) for letter in "cat</s>"]
UNIGRAM_MODEL = model([*SPECIAL, ("\u2581cat", -1.0, 1), ("\u2581", -2.0, 1), *LETTERS])
BPE_MODEL = model(
    [("<pad>", 0.0, 3), ("<eos>", 0.0, 3), ("<bos>", 0.0, 3), ("<unk>", 0.0, 2), ("ca", -0.0, 1),
     ("cat", -1.0, 1), ("\u2581cat", -2.0, 1), ("\u2581", -3.0, 1), ("c", -4.0, 1),
     ("a", -5.0, 1), ("t", -6.0, 1)],
    kind=2,
)  # fmt: skip


def test_a_unigram_model_of_sentencepiece_is_read(tmp_path):
    (tmp_path / "spiece.model").write_bytes(UNIGRAM_MODEL)
    tokenizer = load_tokenizer(tmp_path, 8, pooling="last")
    assert tokenizer("CAT  cat!")[0].tolist() == [3, 3, 1, 1, 1, 1, 1, 1]
    pooled = load_tokenizer(tmp_path, 8)  # no cleaning: a control piece is plain text
    assert pooled("</s>")[0].tolist() == [4, 8, 9, 10, 11, 1, 0, 0]


def test_a_bpe_model_of_sentencepiece_is_read(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(BPE_MODEL)
    tokenizer = load_tokenizer(tmp_path, 6, pooling="last")
    assert tokenizer("cat tac")[0].tolist() == [6, 7, 10, 9, 8, 1]
    tips = load_tokenizer(tmp_path, 6, pooling="mean")  # of TIPS, which has no ends
    assert tips(["CAT tac", ""]).tolist() == [[6, 7, 10, 9, 8, 0], [0] * 6]
    merges = read_vocabulary(find_vocabulary(tmp_path))["model"]["merges"]
    assert merges == [["c", "a"], ["ca", "t"], ["\u2581", "cat"]]


BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "##s", "re", "##sume", "[", "]", "sep", "##")


def test_the_vocabulary_of_bert_is_read(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(BERT) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path, 8, pooling="last", clean="open_clip")
    texts = ["Cats r\xe9sum\xe9 \u732b", "[SEP]", "cat " * 6, ""]  # names of pieces are plain text
    assert (tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id) == (2, 0, 0)
    assert tokenizer(texts).tolist() == [
        [2, 4, 5, 6, 7, 1, 0, 0], [2, 8, 10, 9, 0, 0, 0, 0], [2, *[4] * 6, 0], [2, *[0] * 7],
    ]  # fmt: skip
    with pytest.warns(UserWarning, match=r"ends: 'cat'\. Shorten"):
        tokenizer("cat " * 7)


def test_a_vocabulary_without_the_ids_of_its_tower_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\ncat\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"has no \[CLS\] or \[PAD\], which begin, end and"):
        load_tokenizer(tmp_path, 8, pooling="last")


@pytest.mark.parametrize(
    "content", [b"\x0a\xff\x01", b"\xff" * 12, b"", b"\x0b", model([("a", 0.0, 1)])]
)
def test_a_damaged_model_is_refused(content, tmp_path):
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is no vocabulary \("):
        read_vocabulary(find_vocabulary(tmp_path))


@pytest.mark.parametrize("score", [varint(2 << 3) + varint(7), bytes([2 << 3 | 1]) + bytes(8)])
def test_a_score_that_is_no_float_is_refused(score, tmp_path):
    damaged = message((1, message((1, b"a")) + score))
    (tmp_path / "spiece.model").write_bytes(model([("<unk>", 0.0, 2)]) + damaged)
    with pytest.raises(CheckpointError, match=r"is no vocabulary \("):
        read_vocabulary(find_vocabulary(tmp_path))


def test_many_pieces_are_not_read_after_the_first_bad_one(tmp_path):
    (tmp_path / "spiece.model").write_bytes(b"\x0a\x00" * (1 << 21))  # two million empty pieces
    start = time.process_time()
    with pytest.raises(CheckpointError, match=r"is no vocabulary \("):
        read_vocabulary(find_vocabulary(tmp_path))
    assert time.process_time() - start < 1


@pytest.mark.parametrize("text", ["{", "{}", '{"model": {"vocab": 1}}', "[]"])
def test_a_damaged_table_is_refused(text, tmp_path):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is no[ t]"):
        read_vocabulary(find_vocabulary(tmp_path))
