from retool_mcore.sandbox.base import Result, Status


def observe(status, stdout="", stderr="", value=None):
    return Result(status, stdout, stderr, value, 0.1).observation()


def test_success_shows_stdout_then_value():
    assert observe(Status.SUCCESS, "a\nb\n", "a warning\n", "42") == "a\nb\n42"
    assert observe(Status.SUCCESS, value="0") == "0"
    assert observe(Status.SUCCESS) == ""


def test_an_error_shows_the_last_lines_only():
    stderr = "".join(f"line {i}\n" for i in range(50)) + "ValueError: x\n"
    text = observe(Status.ERROR, "out\n", stderr)
    assert text.startswith("out\nline 41\n") and text.endswith("\nValueError: x")


def test_other_endings_are_one_line_after_stdout():
    assert observe(Status.TIMEOUT, "so far\n", "noise\nran longer than 5 s\n") == "so far\nran longer than 5 s"
    assert observe(Status.SANDBOX, "", "no answer\n") == "no answer"
