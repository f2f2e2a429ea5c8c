"""The card, its front matter and its pictures: known facts, the same bytes, one table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hy3.checkpoint.manifest import Origin, read_manifest
from hy3.quantize.card import write_card
from hy3.quantize.pictures import ERROR_PICTURE, SCALE_PICTURE, draw_pictures
from hy3.quantize.stats import WeightStats
from hy3.quantize.summary import class_rows, summary_table
from support.quantizing import plan_of, run


def facts_of(card: str) -> dict:
    opening, block, _ = card.split("---\n", 2)
    assert opening == ""
    return yaml.safe_load(block)


@pytest.fixture(scope="module")
def licensed(source, tmp_path_factory) -> Path:
    folder = Path(shutil.copytree(source, tmp_path_factory.mktemp("card") / "source"))
    (folder / "README.md").write_text(
        "---\nlicense: other\nlicense_name: tencent\nlanguage: [en, zh]\nbase_model: some/base\n"
        "tags: [chat]\n---\n# A model\n---\n"
    )
    return folder


@pytest.fixture(scope="module")
def made(licensed, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("card") / "out"
    run(licensed, out)
    return out


def test_front_matter_takes_what_the_source_says_of_itself(made):
    assert facts_of((made / "README.md").read_text()) == {
        "license": "other",
        "license_name": "tencent",
        "language": ["en", "zh"],
        "tags": ["hy_v3", "nvfp4", "compressed-tensors"],
    }


@pytest.mark.parametrize(
    "card", [None, "# No front matter\n", "---\na: [\n---\n", "---\n- x\n---\n"]
)
def test_nothing_is_made_up(source, tmp_path, card):
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    if card:
        (folder / "README.md").write_text(card)
    run(folder, tmp_path / "out")
    facts = facts_of((tmp_path / "out" / "README.md").read_text())
    assert facts == {"tags": ["hy_v3", "nvfp4", "compressed-tensors"]}


def test_the_card_shows_table_recipe_hashes_and_pictures(licensed, made):
    card, manifest = (made / "README.md").read_text(), read_manifest(made)
    assert manifest.source
    for name, each in manifest.source.items():
        assert f"| {name} | {each.sha256} |" in card
    assert "| class | `routed_expert` | nvfp4 |\n| class | `*` | copy |" in card
    pictures = {path.name for path in made.glob("*.svg")}
    assert pictures == {ERROR_PICTURE, SCALE_PICTURE} and pictures < manifest.outputs.keys()
    for name in pictures:
        assert f"]({name})" in card
    columns, _ = summary_table(plan_of(licensed), {"routed_expert@1": WeightStats(1, 2, 3)})
    assert f"| {' | '.join(columns)} |" in card


def test_a_source_from_a_hub_is_named_with_its_revision(licensed):
    plan = replace(plan_of(licensed), origin=Origin("org/name", "0123abc"))
    card = write_card(plan, {}, 0, {}, {}).decode()
    assert "`org/name` at revision `0123abc`." in card
    facts = facts_of(card)
    assert (facts["base_model"], facts["base_model_relation"]) == ("org/name", "quantized")
    assert "revision" not in write_card(plan_of(licensed), {}, 0, {}, {}).decode()


def test_rows_carry_plan_and_errors(licensed):
    plan = plan_of(licensed)
    half = WeightStats(error=1.0, max_error=2.0, energy=100.0)
    stats = {"routed_expert@1": half, "routed_expert@2": half}
    rows = {row.line.label: row for row in class_rows(plan, stats)}
    assert rows["routed_expert"].cells()[-3:] == ("0.01000", "0.02000", "-50.0 %")
    assert rows["attention"].cells()[-3:] == ("", "", "")
    assert rows["routed_expert"].as_json()["change_percent"] == pytest.approx(-50)
    assert rows["attention"].as_json()["relative_squared_error"] is None
    columns, cells = summary_table(plan, {})
    assert columns[-1] == "to" and {len(each) for each in cells} == {len(columns)}


def test_pictures_follow_the_statistics():
    shifts = tuple(5 if i in (15, 16, 18) else 0 for i in range(33))
    nvfp4 = {"routed_expert@1": WeightStats(1, 2, 300, shifts)}
    fp8 = {"lm_head": WeightStats(1, 1, 300)}
    assert draw_pictures({}, "exact") == {}
    assert draw_pictures(fp8, "exact").keys() == {ERROR_PICTURE}
    pictures = draw_pictures(nvfp4 | fp8, "exact")
    assert pictures.keys() == {ERROR_PICTURE, SCALE_PICTURE}
    # from one step below amax / 6 to two above, the empty step between them included
    text = pictures[SCALE_PICTURE].decode()
    assert text.count(">33.3<") == 3 and ">2<" in text and ">3<" not in text
