from __future__ import annotations

from serving.local import errors, supervisor


def test_an_error_comes_out_of_another_process_as_it_went_in() -> None:
    taken = errors.revived("PortTaken", "port 8080 is taken", log_tail=[])
    assert isinstance(taken, errors.PortTaken)
    assert str(taken) == "port 8080 is taken"
    failed = errors.revived("PartFailed", "the agent ended", log_tail=["a", "b"])
    assert isinstance(failed, errors.PartFailed)
    assert failed.log_tail == ["a", "b"]
    assert type(errors.revived("FromTheFuture", "text", log_tail=[])) is errors.LocalError


def test_the_pause_before_a_restart_doubles_up_to_a_bound() -> None:
    assert [supervisor.back_off_s(losses) for losses in (1, 2, 3, 6, 7, 50)] == [0.5, 1, 2, 16, 30, 30]
