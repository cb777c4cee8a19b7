"""For public leak reports, the verdict, the holder, the line and the fix agree with the resolution."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from .fresh import in_a_fresh_process
from .leak_page import require_message_of_the_page
from .watching import findings_of

FOLDER = Path(__file__).parent / "reports"


class Message(NamedTuple):
    """The beginning and the end of the expected message."""

    owner: str | tuple[str, ...]
    fix: str


REPORTS = {
    # Without its container if most of the memory is native.
    "alphalens_241": Message(
        ("Gcf.figs (OrderedDict, ", "pyplot ("), "Call plt.close(figure) after the last use."
    ),
    "baseplate_302": Message("Worker.work_queue (Queue, ", "Limit it: Queue(maxsize=N)."),
    "brax_152": Message("brax_152.total_loss (", "Add loss.item() or loss.detach()."),
    "devlib_676": Message("atexit (", "Call atexit.unregister(callback), or register a weakref.WeakMethod."),
    "flake8_1573": Message(
        "StyleGuideManager.style_guide_for (lru_cache, ",
        "Cache in an attribute of the object, not in the class.",
    ),
    "malariagen_949": Message(
        "logging (", "Add it once, or call removeHandler(handler) and handler.close()."
    ),
    "peft_2761": Message(
        "XLora.first._forward_pre_hooks (OrderedDict, ",
        "Keep the handle that the registration returns, and call handle.remove().",
    ),
    "posydon_364": Message(
        "posydon_364.__warningregistry__ (dict, ", "Warn with a text that does not change."
    ),
    "pyepics_156": Message(
        "CacheItem.callbacks (list, ",
        "Store weakref.WeakMethod(callback), or remove the callback with its owner.",
    ),
    "pytorch_2198": Message("LanguageModel.hidden[*] (", "Store state.detach()."),
    "pytorch_4661": Message(
        "<Parameter (100, 100) from leaf, whose grad has grad_fn: a create_graph cycle",
        "Use torch.autograd.grad, or set each grad to None after its last use.",
    ),
    "pytorch_forecasting_1924": Message(
        "BaseModel.training_step_outputs (list, ",
        "Store loss.item() or loss.detach().",
    ),
    "stem_156": Message("Controller.address_error (", "Store str(error) or traceback.format_exc()."),
    "thingsvision_150": Message("Extractor.features (list, ", "Store view.clone()."),
    "trax_409": Message("TensorBoard (", "Create one SummaryWriter, or call writer.close()."),
    "vllm_15597": Message(
        "Engine.seq_id_to_seq_group (dict, ",
        "Delete each entry after its last use, such as with pop(key).",
    ),
}


def test_every_report_has_a_program_of_at_most_30_lines() -> None:
    texts = {file.stem: file.read_text() for file in FOLDER.glob("*.py")}
    assert texts.keys() == REPORTS.keys()
    for name, text in texts.items():
        docstring, program = text[3:].split('"""\n', 1)
        assert all(part in docstring for part in ("Report: https://github.com/", "Cause: ", "Resolution: "))
        assert name.rpartition("_")[2] in docstring and len(program.splitlines()) <= 30


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_has_the_verdict_the_line_and_the_fix_of_its_thread(name: str) -> None:
    found = in_a_fresh_process(partial(findings_of, FOLDER, name, "step"))
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith("# grows")]
    owner, fix = REPORTS[name]
    assert found.verdict == "leak"
    assert any(
        message.startswith(owner) and f"{name}.py:{number})" in message and message.endswith(f". {fix}")
        for message in found.messages
    ), found.messages
    require_message_of_the_page(name, found.messages)


@pytest.mark.parametrize("name", REPORTS)
def test_the_resolution_of_a_report_ends_the_leak(name: str) -> None:
    found = in_a_fresh_process(partial(findings_of, FOLDER, name, "resolved"))
    assert found.verdict == "flat", found.messages
