"""What the preflight's tests expect of a refusal: a UserError of one sentence."""

import pytest

from retool_mcore.errors import UserError


def refusal(function, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message
