"""``predict``: the decode speed of a launch, and how far it is to be believed.

The roofline gives a number for everything. Its constants were fitted on steps of some length, of
some engines and with some numbers of tokens: outside of these a number is doubtful or is none.
"""

from __future__ import annotations

from dataclasses import replace

from hy3.hardware.device import Hardware
from hy3.plan.calibration import Calibration, load_calibrations
from hy3.plan.model_shape import ModelShape
from hy3.plan.request import Request
from hy3.plan.roofline import Prediction, Workload, in_flight, mode_of, predict_decode
from hy3.plan.settings import NATIVE, Settings

CANNOT_TELL = "cannot tell"


def predict(
    shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> Prediction:
    """The roofline's answer, with ``told`` and ``confidence`` by what it was fitted on."""
    calibration = load_calibrations()[hardware.device.kind, mode_of(settings)]
    tokens = request.tokens_of_a_sequence(settings.context)
    workload = Workload(tokens, request.acceptances)
    used = hardware.used_by(settings.ranks)
    decode = predict_decode(shape, used, settings, workload, calibration)
    if why := _untold(decode, settings, calibration):
        return replace(decode, told=False, confidence=f"{CANNOT_TELL}: {why}")
    if doubts := _doubts(decode, settings, calibration):
        sentence = f"low: {'; '.join(doubts)} ({calibration.confidence})"
        return replace(decode, confidence=sentence)
    return decode


def _untold(decode: Prediction, settings: Settings, calibration: Calibration) -> str:
    """Why the prediction is no answer at all; empty when it is one."""
    if settings.engine == NATIVE:
        return "the constants of speed are vLLM's and SGLang's, and no measured row is of hy3's own"
    lost_s = calibration.lost_in_scatter_s
    if decode.model_s >= lost_s:
        return ""
    return (
        f"the model takes {_ms(decode.model_s)} of a step; up to {_ms(lost_s)} that every step "
        "costs could hide in the scatter of the measured ones, and would decide here"
    )


def _doubts(decode: Prediction, settings: Settings, calibration: Calibration) -> list[str]:
    """In what the launch is unlike every measured row."""
    found = []
    if settings.pipeline_parallel > 1:
        found.append("no measured row has pipeline stages")
    if decode.model_s < calibration.shortest_step_s:
        found.append(
            f"a step of {_ms(decode.model_s)} is shorter than any measured, "
            f"{_ms(calibration.shortest_step_s)}"
        )
    tokens = in_flight(settings).streams * (settings.draft_depth + 1)
    if tokens > calibration.most_step_tokens:
        found.append(
            f"{tokens} tokens in a step are more than the {calibration.most_step_tokens} of any "
            "measured row"
        )
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
