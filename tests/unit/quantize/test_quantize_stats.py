"""Statistics add up by key, by class, and with or without a histogram."""

from __future__ import annotations

from hy3.quantize.stats import WeightStats, add_stats, layer_key, stats_by_class


def test_sums_and_ratios() -> None:
    one, two = WeightStats(1.0, 2.0, 4.0, (1, 0, 2)), WeightStats(0.5, 0.5, 1.0, (0, 3, 1))
    assert one + two == WeightStats(1.5, 2.5, 5.0, (1, 3, 3))
    assert one + WeightStats() == one == WeightStats() + one
    assert (one + two).relative_error == 0.3 and (one + two).relative_max_error == 0.5
    assert WeightStats().relative_error == 0.0


def test_layers_of_a_class_add_up() -> None:
    assert layer_key("lm_head", None) == "lm_head"
    first = {layer_key("routed_expert", 1): WeightStats(1.0), "lm_head": WeightStats(8.0)}
    second = {"routed_expert@1": WeightStats(2.0), "routed_expert@2": WeightStats(4.0)}
    both = add_stats([first, second])
    assert both["routed_expert@1"].error == 3.0
    assert stats_by_class(both) == {"routed_expert": WeightStats(7.0), "lm_head": WeightStats(8.0)}
