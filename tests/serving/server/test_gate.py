"""Which hosts and which pages a server answers."""

import pytest

from t2t.serving.server.gate import check_origin, is_own_host
from t2t.serving.server.problem import Problem


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost:8000", True),
        ("t2t.localhost", True),
        ("evillocalhost", False),
        ("localhost.evil.com", False),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("vision.example.org", True),
        ("other.example.org", False),
        ("", False),
    ],
)
def test_a_host_is_an_address_localhost_or_a_name_that_is_allowed(
    host: str, is_own: bool
) -> None:
    assert is_own_host(host, ("Vision.example.org",)) == is_own


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_browser_that_names_another_site_is_refused(site: str) -> None:
    with pytest.raises(Problem) as refused:
        check_origin({"sec-fetch-site": site}, "localhost:8000")
    assert refused.value.status == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_its_own_page_and_a_typed_address_are_let_in(site: str) -> None:
    own = {"sec-fetch-site": site, "origin": "http://localhost:8000"}
    check_origin(own, "localhost:8000")
    with pytest.raises(Problem):
        check_origin({**own, "origin": "http://evil.com"}, "localhost:8000")
