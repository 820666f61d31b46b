"""How the prompts of a step are numbered, and that no two rollouts of a step share a seed."""

from retool_mcore.rollout.seeds import Draws, request_seed


def test_a_step_numbers_its_prompts_and_the_draws_of_each_problem():
    draws = Draws()
    drawn = [draws.number(1, source, index) for source, index in [("a", 3), ("b", 3), ("a", 3), ("a", 4), ("a", 3)]]
    assert [place.order for place in drawn] == [0, 1, 2, 3, 4]
    assert [place.draw for place in drawn] == [0, 0, 1, 0, 2]
    assert draws.number(2, "a", 3) == (0, 0)


def test_no_two_requests_of_a_step_have_the_same_seed():
    places = [(7, sample, turn, draw) for sample in range(4) for turn in range(4) for draw in range(4)]
    seeds = {request_seed(1, 5, index, sample, turn, draw=draw) for index, sample, turn, draw in places}
    interrupted = {request_seed(1, 5, 7, 0, 0, 3, draw=draw) for draw in range(4)}
    assert len(seeds | interrupted) == len(places) + 4


def test_the_first_draw_keeps_the_seed_it_always_had():
    assert request_seed(1, 5, 7, 0, 0, draw=0) == request_seed(1, 5, 7, 0, 0) == 126931589
