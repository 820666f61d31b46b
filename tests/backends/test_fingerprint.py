"""The fingerprint by which a weight push is verified: slices add up, and one element that differs is found."""

import pytest
import torch

from retool_mcore.backends.verl.fingerprint import (
    EMBEDDING,
    HEAD,
    Block,
    Whole,
    difference,
    fingerprint,
    tied_difference,
    whole,
)

WRAP = 1 << 64


def cut(tensor: torch.Tensor, rows: list[int], columns: list[int]) -> list[Block]:
    """`tensor` in the slices that `rows` and `columns` bound."""
    blocks = []
    for top, bottom in zip(rows, rows[1:], strict=False):
        for left, right in zip(columns, columns[1:], strict=False):
            value = int(fingerprint(tensor[top:bottom, left:right], top, left))
            blocks.append(Block(top, left, bottom - top, right - left, value))
    return blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slices_add_up_to_the_whole_in_any_order(dtype):
    tensor = torch.randn(37, 19, generator=torch.manual_seed(0)).to(dtype)
    expected = int(fingerprint(tensor))
    for rows, columns in ([0, 37], [0, 5, 19]), ([0, 1, 20, 37], [0, 19]), ([0, 9, 37], [0, 18, 19]):
        blocks = cut(tensor, rows, columns)[::-1]
        found, differing = whole([{"w": blocks[:1]}, {"w": blocks[1:]}])
        assert found == {"w": Whole(37 * 19, expected)} and not differing


def test_a_vector_is_one_column_and_its_parts_add_up():
    bias = torch.randn(12)
    parts = int(fingerprint(bias[:5])) + int(fingerprint(bias[5:], 5))
    assert (parts - int(fingerprint(bias))) % WRAP == 0
    assert int(fingerprint(bias)) == int(fingerprint(bias.reshape(12, 1)))


def test_large_tensors_are_summed_in_chunks(monkeypatch):
    tensor = torch.randn(50, 7)
    expected = int(fingerprint(tensor))
    monkeypatch.setattr("retool_mcore.backends.verl.fingerprint._CHUNK", 20)
    assert int(fingerprint(tensor)) == expected


@pytest.mark.parametrize("place", [(0, 0), (6, 3), (2, 4)])
def test_one_element_that_differs_by_one_bit_is_found(place):
    tensor = torch.randn(7, 5).to(torch.bfloat16)
    other = tensor.clone()
    other.view(torch.int16)[place] ^= 1
    assert int(fingerprint(tensor)) != int(fingerprint(other))


def test_swapped_rows_columns_and_elements_are_found():
    tensor = torch.arange(1.0, 13.0).reshape(4, 3)
    swapped = [tensor[[1, 0, 2, 3]], tensor[:, [2, 1, 0]], tensor.flatten()[[1, 0, *range(2, 12)]].reshape(4, 3)]
    assert len({int(fingerprint(one)) for one in [tensor, *swapped]}) == 4


def test_ranks_that_share_a_slice_must_hold_the_same():
    head, other = torch.randn(4, 4), torch.randn(4, 4)
    blocks = [{"k": cut(tensor, [0, 4], [0, 4])} for tensor in (head, head, other)]
    assert whole(blocks[:2])[0] == {"k": Whole(16, int(fingerprint(head)))}
    assert difference({}, *whole(blocks[1:])) == "two of the engine's ranks hold different copies of k"


def test_the_first_difference_is_named():
    exported = {"a": Whole(4, 1), "b": Whole(6, 2)}
    assert difference(exported, dict(exported)) is None
    for held, words in (
        ({"a": Whole(4, 1)}, "no tensor b, which the trainer exported"),
        (exported | {"b": Whole(6, 3)}, "b in the engine is not what the trainer exported"),
        (exported | {"b": Whole(5, 2)}, "5 elements of b, the trainer exported 6"),
        (exported | {"c": Whole(1, 1)}, "a tensor c, which the trainer did not export"),
    ):
        assert words in difference(exported, held)


def test_a_matrix_is_compared_in_the_type_that_the_engine_holds():
    exported = {"a": Whole(4, 1), "a_fp8": Whole(4, 2), "a_scale_inv": Whole(1, 3), "norm": Whole(2, 4)}
    plain = {"a": Whole(4, 1), "norm": Whole(2, 4)}
    quantised = {name: value for name, value in exported.items() if name != "a"}
    assert difference(exported, plain) is None and difference(exported, quantised) is None
    for held, words in (
        (plain | {"a": Whole(4, 2)}, "a in the engine is not what the trainer exported"),
        (plain | {"norm": Whole(2, 5)}, "norm in the engine is not what the trainer exported"),
        (quantised | {"a_fp8": Whole(4, 1)}, "a_fp8 in the engine is not what the trainer exported"),
        (quantised | {"a_scale_inv": Whole(1, 1)}, "a_scale_inv in the engine is not what the trainer exported"),
        (quantised | {"norm": Whole(2, 5)}, "norm in the engine is not what the trainer exported"),
        (exported, "a tensor a, which the trainer did not export"),
        ({"a_fp8": Whole(4, 2), "norm": Whole(2, 4)}, "no tensor a_scale_inv, which the trainer exported"),
        ({"a_scale_inv": Whole(1, 3), "norm": Whole(2, 4)}, "no tensor a, which the trainer exported"),
        ({"norm": Whole(2, 4)}, "no tensor a, which the trainer exported"),
    ):
        assert words in difference(exported, held)
    assert "a tensor a_fp8, which the trainer did not export" in difference(plain, quantised)


TABLE, OTHER = Whole(8, 5), Whole(8, 6)


@pytest.mark.parametrize("exports_head", [False, True])
@pytest.mark.parametrize("holds_head", [False, True])
def test_a_tied_output_layer_is_the_exported_embedding(exports_head, holds_head):
    exported = {EMBEDDING: TABLE, "norm": Whole(2, 4)} | ({HEAD: TABLE} if exports_head else {})
    held = {EMBEDDING: TABLE, "norm": Whole(2, 4)} | ({HEAD: TABLE} if holds_head else {})
    assert tied_difference(exported, held) is None
    assert "norm in the engine" in tied_difference(exported, held | {"norm": Whole(2, 5)})
    assert f"{EMBEDDING} in the engine" in tied_difference(exported, held | {EMBEDDING: OTHER})
    assert f"{HEAD} in the engine is not what" in tied_difference(exported, held | {HEAD: OTHER})


def test_a_trainer_whose_head_left_its_embedding_is_found():
    exported = {EMBEDDING: TABLE, HEAD: OTHER}
    for held in ({EMBEDDING: TABLE}, {EMBEDDING: TABLE, HEAD: TABLE}, {EMBEDDING: TABLE, HEAD: OTHER}):
        assert f"other values for {HEAD} than for {EMBEDDING}" in tied_difference(exported, held)


def test_a_tied_head_is_compared_in_the_type_that_the_engine_holds():
    forms = {"": TABLE, "_fp8": Whole(8, 7), "_scale_inv": Whole(1, 8)}
    exported = {EMBEDDING + form: value for form, value in forms.items()}
    both = exported | {HEAD + form: value for form, value in forms.items()}
    for sent in (exported, both):
        assert tied_difference(sent, {EMBEDDING: TABLE}) is None
        assert tied_difference(sent, {EMBEDDING: TABLE, HEAD: TABLE}) is None
        quantised = {EMBEDDING: TABLE, HEAD + "_fp8": Whole(8, 7), HEAD + "_scale_inv": Whole(1, 8)}
        assert tied_difference(sent, quantised) is None
        assert f"{HEAD}_fp8 in the engine" in tied_difference(sent, quantised | {HEAD + "_fp8": Whole(8, 0)})
