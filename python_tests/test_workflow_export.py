"""torch.export with a dynamic batch: saved, loaded again, and run on other batches."""

from __future__ import annotations

import io

import pytest
import torch
from workflow_models import MODELS, examples

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", MODELS)
def test_exported_saved_and_loaded(name: str) -> None:
    model, (x, _) = MODELS[name](), examples(3)
    batch = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(model, (x,), dynamic_shapes=(batch,), strict=name == "fused")
    ours = [str(node.target) for node in program.graph.nodes if "zb." in str(node.target)]
    assert len(ours) >= 3
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for count in (1, 2, 40):
        x, _ = examples(count, seed=count)
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)
    assert dict(again.named_parameters()).keys() == dict(model.named_parameters()).keys()
