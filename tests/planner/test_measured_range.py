from hydraplan.config import load_cluster
from hydraplan.cost import CostModel
from hydraplan.files.profilefile import TermError
from hydraplan.planner.measured_range import extrapolated, largest_sizes, together
from hydraplan.profiler.analytic import analytic_fit
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, tiny_model

COST = CostModel(
    analytic_fit(load_cluster("h100-sxm")), tiny_model(), tp=1, pp=2, ranks=8, layers=((1,), (1,))
)


def term(name: str, largest: float) -> TermError:
    errors = dict.fromkeys(
        ("median_error", "worst_error", "left_out_median", "left_out_p90", "smallest"), 0.0
    )
    return TermError(name=name, num_points=3, largest=largest, unit="rows", **errors)


def test_the_largest_call_and_message_of_a_batch_are_those_of_the_engine() -> None:
    places = [Place(100), Place(800, 0, 2, 2), Place(300, 4, 2, 1)]
    asked = largest_sizes(COST, batch_plan(0, batch_rows(places), 1, 2))
    assert asked["attention_forward"] == 300  # 800 tokens in a ring of two: halves of a shard
    assert asked["loss_input"] == 300
    assert asked["embedding_weight"] == 300 * 32 * 4
    assert asked["linear_weight"] == 300  # 100 whole ones and a quarter of 800
    # Queries, keys and values of 200 rows or of 150: 8 heads and 2 twice, half of each leaves.
    assert asked["node_all_to_all"] == 200 * (8 + 2 * 2) * 8 * 4 / 2
    hop, boundary = 2 * 200 * 2 * 8 * 4, 300 * 32 * 4
    assert asked["node_p2p"] == max(hop, boundary)


def test_what_is_further_out_than_twice_the_measured_size_is_named_with_both_sizes() -> None:
    asked = {"attention_forward": 2001.0, "linear_forward": 2000.0}
    terms = [term("attention_forward", 1000), term("linear_forward", 1000), term("node_p2p", 1)]
    (line,) = extrapolated(terms, asked)
    assert line == (
        "attention_forward is extrapolated: the plan has 2,001 rows a call, measured were at most"
        " 1,000; give the profile more --seconds"
    )


def test_of_several_batches_the_largest_counts() -> None:
    assert together([{"a": 1.0}, {"a": 3.0, "b": 2.0}, {}]) == {"a": 3.0, "b": 2.0}
    assert together([]) == {}


def test_a_batch_without_a_placed_row_asks_for_nothing() -> None:
    assert largest_sizes(COST, batch_plan(0, batch_rows([Place(0)]), 1, 2)) == {}
