"""What ``vllm_agreement`` makes of two engines' answers: a checkpoint's and its BF16 twin's."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import Any

MEAN_BOUND = 0.05  # mean |difference of log-probability|
OWN_FACTOR = 3  # the same, in units of the twin's largest difference under another batch shape
NEAR_TIE = 0.25  # log-probability of the likeliest token less that of the second
KERNEL_LINE = re.compile(
    r"(?:Using|Selected) .*(?:backend|ernel|GEMM|for Comp).*|.*Marlin kernel.*"
)
LOG_PREFIX = re.compile(r"^.*?\[[\w.]+:\d+\] ")


@dataclass(frozen=True)
class Answers:
    """What one engine answered (see ``vllm_case``), and its log."""

    result: dict[str, Any]
    log: str

    @property
    def failure(self) -> dict[str, str] | None:
        """Why there are no answers: vLLM refused the model, or had no turn."""
        for kind in ("refused", "not_run"):
            if kind in self.result:
                return {"outcome": kind, "message": self.result[kind]}
        return None

    def logprobs(self, shape: str) -> list[float]:
        """All prompt tokens' log-probabilities, prompt after prompt."""
        return [each for prompt in self.result["prompt_logprobs"][shape] for each in prompt]

    def kernels(self) -> list[str]:
        """The lines of the log that name a kernel or backend, each once."""
        lines = (LOG_PREFIX.sub("", line).strip() for line in self.log.splitlines())
        return list(dict.fromkeys(line for line in lines if KERNEL_LINE.fullmatch(line)))


@dataclass(frozen=True)
class Twin:
    """What a checkpoint's answers are held against."""

    answers: Answers  # with all shapes
    exact: list[float] | None  # log-probabilities in fp32; None where the cache rounds as well

    def own_differences(self) -> dict[str, float]:
        """Mean |difference| that another batch shape makes, by shape."""
        together = self.answers.logprobs("together")
        others = [shape for shape in self.answers.result["prompt_logprobs"] if shape != "together"]
        return {
            shape: mean_difference(self.answers.logprobs(shape), together)["mean"]
            for shape in others
        }


def judge(answers: Answers, twin: Twin) -> dict[str, Any]:
    """``agrees``, ``differs``, ``refused`` or ``not_run``, with what says so."""
    if answers.failure:
        return answers.failure | {"kernels": answers.kernels()}
    if twin.answers.failure:
        return {"outcome": "no_twin", "message": twin.answers.failure["message"]}
    own = twin.own_differences()
    bound = OWN_FACTOR * max(own.values())
    difference = mean_difference(answers.logprobs("together"), twin.answers.logprobs("together"))
    texts = compare_texts(answers.result["greedy"], twin.answers.result["greedy"])
    close = difference["mean"] <= min(MEAN_BOUND, bound)
    agrees = close and texts["beyond_near_ties"] == 0
    return {
        "outcome": "agrees" if agrees else "differs",
        "mean_abs_difference": in_json(difference["mean"]),
        "max_abs_difference": in_json(difference["max"]),
        "not_finite": difference["not_finite"],
        "own_differences": {shape: in_json(mean) for shape, mean in own.items()},
        "within_mean_bound": difference["mean"] <= MEAN_BOUND,
        "within_own_factor": difference["mean"] <= bound,
        "from_fp32": distances(answers, twin),
        "greedy": texts,
        "drafts": answers.result["drafts"],
        "drafts_of_twin": twin.answers.result["drafts"],
        "kernels": answers.kernels(),
        "start_seconds": answers.result["start_seconds"],
    }


def distances(answers: Answers, twin: Twin) -> dict[str, dict[str, float | None]] | None:
    """How far the engine is from fp32 arithmetic over the same weights, with each of the two."""
    if twin.exact is None:
        return None
    sides = {"checkpoint": answers, "twin": twin.answers}
    found = {
        name: mean_difference(side.logprobs("together"), twin.exact) for name, side in sides.items()
    }
    return {
        name: {"mean": in_json(each["mean"]), "max": in_json(each["max"])}
        for name, each in found.items()
    }


def between(one: Answers, other: Answers) -> dict[str, Any]:
    """How far two engines' answers are from each other, or why they cannot be compared."""
    failure = one.failure or other.failure
    if failure:
        return failure
    difference = mean_difference(one.logprobs("together"), other.logprobs("together"))
    return {"mean_abs_difference": in_json(difference["mean"])}


def mean_difference(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Mean and largest |difference|; both infinite where a value is not finite."""
    pairs = zip(ours, theirs, strict=True)
    differences = [abs(one - other) for one, other in pairs]
    not_finite = sum(not math.isfinite(each) for each in differences)
    if not_finite:
        return {"mean": math.inf, "max": math.inf, "not_finite": not_finite}
    return {"mean": statistics.fmean(differences), "max": max(differences), "not_finite": 0}


def in_json(number: float) -> float | None:
    """JSON knows no infinity: None."""
    return round(number, 5) if math.isfinite(number) else None


def compare_texts(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Greedy texts that differ, each with the gap at the first token that does."""
    first_differences = []
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        place = first_difference(one["tokens"], other["tokens"])
        if place is not None:
            gaps = [side["gaps"][place] for side in (one, other) if place < len(side["gaps"])]
            gap = min(gaps)
            first_differences.append({"text": index, "place": place, "gap": in_json(gap)})
    far = [each for each in first_differences if each["gap"] is None or each["gap"] > NEAR_TIE]
    return {
        "texts": len(ours),
        "equal": len(ours) - len(first_differences),
        "first_differences": first_differences,
        "beyond_near_ties": len(far),
    }


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    """Where two texts part; None where they are equal."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    shorter, longer = sorted((len(ours), len(theirs)))
    return shorter if shorter != longer else None
