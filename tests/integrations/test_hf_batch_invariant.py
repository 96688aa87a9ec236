# SPDX-License-Identifier: Apache-2.0
"""rlk.integrations.batch_invariant in a model of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from rlk.integrations import batch_invariant


def by_head(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
) -> tuple[Any, None]:
    """Eager attention whose products are matrix products, which batch_invariant replaces: torch.bmm
    of a card depends on the batch."""
    groups = module.num_key_value_groups
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    out = torch.empty_like(query)
    for sequence in range(query.shape[0]):
        for head in range(query.shape[1]):
            at = sequence, head
            scores = torch.mm(query[at], key[at].T) * scaling + mask[sequence, 0]
            weights = scores.float().softmax(-1).to(query.dtype)
            out[at] = torch.mm(weights, value[at])
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("by_head", by_head)
AttentionMaskInterface.register("by_head", eager_mask)
on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")


@pytest.mark.tried("batch_invariant in a Llama", "transformers")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.float32), pytest.param("cuda", torch.bfloat16, marks=on_a_card)],
)
def test_logits_do_not_depend_on_the_batch(device, dtype):
    """A sequence in a padded batch; alone; and alone, its last tokens one by one.

    What torch itself does to each element depends on the number of tokens too, where that is not
    avoided here: silu at the end of a thread's part of a tensor, and softmax of fewer scores than a
    vector or a warp has lanes.
    """
    sizes = {"hidden_size": 256, "intermediate_size": 704, "head_dim": 64}
    model = tiny.model("llama", dtype, **sizes, initializer_range=0.06).to(device)
    model.set_attn_implementation("by_head")
    generator = torch.Generator().manual_seed(3)
    lengths = [37, 40, 50, 97]
    ids = torch.randint(3, tiny.VOCAB, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = (ids * mask).to(device)
    with torch.no_grad(), batch_invariant.mode():
        together = model(input_ids=ids, attention_mask=mask.to(device)).logits
        for i, length in enumerate(lengths):
            own = ids[i : i + 1, :length]
            want = together[i, :length]
            assert torch.equal(model(input_ids=own).logits[0], want), length
            begun = model(input_ids=own[:, :-4], use_cache=True)
            found = [begun.logits[0]]
            for at in range(length - 4, length):
                step = model(input_ids=own[:, at : at + 1], past_key_values=begun.past_key_values)
                found.append(step.logits[0])
            assert torch.equal(torch.cat(found), want), length


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
