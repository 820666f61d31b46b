"""A micro-batch by indices: what verl's own functions give, bit for bit, without a look at the device's values."""

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from verl.models.mcore import util
from verl.utils import tensordict_utils
from verl.utils.torch_functional import expand_as_nested
from verl.workers.utils.padding import no_padding_2_padding

from retool_mcore.backends.megatron.packed_layout import EXPAND, PACK, PAD, UNPACK, PackedLayout, to_device
from retool_mcore.backends.megatron.token_positions import token_positions

PROMPTS, RESPONSES = (3, 1, 7, 2), (5, 9, 1, 6)
LENGTHS = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
CPU, META = torch.device("cpu"), torch.device("meta")  # nobody can read a value from meta


def nested(lengths, kind=torch.int64):
    return torch.nested.as_nested_tensor(
        [torch.randint(1, 1000, (length,)).to(kind) for length in lengths], layout=torch.jagged
    )


def batch():
    columns = {"input_ids": nested(LENGTHS), "prompts": nested(PROMPTS), "responses": nested(RESPONSES)}
    data = TensorDict(columns | {"reward": torch.arange(4.0)}, batch_size=4)
    data["uid"] = NonTensorStack(*"abcd")
    tensordict_utils.assign_non_tensor(data, temperature=0.7)
    return data


@pytest.fixture
def parallel(monkeypatch):
    def of(tp):
        monkeypatch.setattr(util.mpu, "get_tensor_model_parallel_world_size", lambda: tp)
        monkeypatch.setattr(util.mpu, "get_context_parallel_world_size", lambda: 1)
        monkeypatch.setattr(util.mpu, "get_context_parallel_rank", lambda: 0)
        monkeypatch.setattr(util.mpu, "get_context_parallel_group", lambda: None)

    of(4)
    return of


OPTIONS = [
    {},
    {"pad_to_length_bucket": 64},
    {"use_fp8_padding": True},
    {"use_fp8_padding": True, "pad_to_length_bucket": 48},
]


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("options", OPTIONS)
def test_packing_and_unpacking_are_verls(parallel, tp, options):
    parallel(tp)
    data = batch()
    rows = PackedLayout(data, CPU)
    for column, roll in (
        (data["input_ids"], False),
        (data["input_ids"], True),
        (nested(LENGTHS, torch.float32), False),
    ):
        packed, params, position = rows.pack(column, need_roll=roll, **options)
        expected, their_params, their_position = PACK.stock(column, need_roll=roll, **options)
        assert torch.equal(packed, expected) and packed.dtype == expected.dtype
        assert torch.equal(position, their_position)
        for name, value in vars(their_params).items():
            ours = getattr(params, name)
            assert torch.equal(ours, value) if isinstance(value, torch.Tensor) else ours == value
    output = torch.randn(packed.shape, requires_grad=True)
    weight = torch.randn(sum(LENGTHS))
    results = []
    for unpack in (rows.unpack, UNPACK.stock):
        found = unpack(output, params, data["input_ids"], 4)
        (gradient,) = torch.autograd.grad((found.values() * weight).sum(), output)
        results.append((found.values(), found.offsets(), gradient))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_a_stage_that_does_not_embed_gets_the_ids_as_they_are(parallel):
    data = batch()
    ids, params, position = PackedLayout(data, CPU).pack(data["input_ids"], pre_process=False)
    assert ids is data["input_ids"] and position is None
    assert params.cu_seqlens_q.tolist() == [0, 8, 20, 28, 36] and params.max_seqlen_q == 12
    hidden = torch.randn(1, 36)
    assert PackedLayout(data, CPU).unpack(hidden, params, ids, 4, post_process=False) is hidden


@pytest.mark.parametrize("trailing", [(), (3,)])
@pytest.mark.parametrize("width", [None, 11])
def test_the_losss_rows_are_verls(trailing, width):
    data = batch()
    if width:
        tensordict_utils.assign_non_tensor(data, max_response_len=width)
    values = torch.randn(sum(LENGTHS), *trailing, requires_grad=True)
    results = []
    for pad in (PackedLayout(data, CPU).pad, no_padding_2_padding):
        found = pad(values, data)
        (gradient,) = torch.autograd.grad((found * torch.arange(found.numel()).view(found.shape)).sum(), values)
        results.append((found, gradient))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    log_probs = torch.nested.nested_tensor_from_jagged(values, data["input_ids"].offsets())
    assert torch.equal(PackedLayout(data, CPU).pad(log_probs, data), results[0][0])


def test_a_value_a_sequence_is_spread_as_by_verl():
    data, temperature = batch(), torch.tensor([0.5, 1.0, 0.7, 2.0])
    ours, theirs = (
        expand(temperature, data["input_ids"]) for expand in (PackedLayout(data, CPU).expand, expand_as_nested)
    )
    assert torch.equal(ours.values(), theirs.values()) and torch.equal(ours.offsets(), theirs.offsets())


def test_nothing_is_read_from_the_device(parallel):
    data = batch()
    rows, there = PackedLayout(data, META), to_device(data, META)
    ids = there["input_ids"]
    with pytest.raises(RuntimeError):
        PACK.stock(ids)
    packed, params, _ = rows.pack(ids)
    rows.pack(ids, need_roll=True)
    rows.pack(rows.expand(torch.ones(4, device=META), ids))
    found = rows.unpack(torch.zeros(packed.shape, device=META, requires_grad=True), params, ids, 4)
    rows.pad(found, there).sum().backward()
    assert params.cu_seqlens_q is params.cu_seqlens_q_padded is params.cu_seqlens_kv is params.cu_seqlens_kv_padded
    tensors = (packed, params.cu_seqlens_q, found.values(), token_positions(there))
    assert all(tensor.device == META for tensor in tensors)


def test_a_moved_batch_is_the_same():
    data = batch()
    there = to_device(data, CPU)
    assert sorted(there.keys()) == sorted(data.keys()) and there.batch_size == data.batch_size and there.device == CPU
    for name in ("input_ids", "prompts", "responses"):
        assert torch.equal(there[name].values(), data[name].values())
        assert torch.equal(there[name].offsets(), data[name].offsets())
    assert there["reward"].tolist() == [0, 1, 2, 3] and list(there["uid"]) == list("abcd")
    assert tensordict_utils.get_non_tensor_data(there, "temperature", None) == 0.7


def test_another_micro_batchs_tensor_is_refused():
    data = batch()
    with pytest.raises(ValueError, match="has 34 tokens and this tensor 33"):
        PackedLayout(data, CPU).pad(torch.zeros(33), data)
    data["prompts"] = nested([1, 1, 1, 1])
    with pytest.raises(ValueError, match="not its prompt and its response"):
        PackedLayout(data, CPU).pad(torch.zeros(34), data)
    data["prompts"], data["responses"] = nested([8, 10, 8, 7]), nested([0, 0, 0, 1])
    tensordict_utils.assign_non_tensor(data, max_response_len=0)
    with pytest.raises(ValueError, match="a response of at most 0 tokens"):
        PackedLayout(data, CPU).pad(torch.zeros(34), data)


def test_verls_functions_are_back_afterwards():
    data = batch()
    rows = PackedLayout(data, CPU)
    places = (PACK, UNPACK, EXPAND, PAD)
    with pytest.raises(ZeroDivisionError), rows.used():
        assert all(getattr(place.module, place.name) is not place.stock for place in places)
        1 / 0  # noqa: B018
    assert rows.using(lambda: getattr(PAD.module, PAD.name))() == rows.pad
    assert all(getattr(place.module, place.name) is place.stock for place in places)
