"""Claims of a user at the OpenID provider: the name and the roles that they have in this console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.capabilities.console.auth.oidc_settings import OidcSettings
from grandrounds.capabilities.console.auth.users import Role
from grandrounds.core.errors import BadInput, nearest, visible

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Identity:
    """A user as the provider describes them.

    Attributes:
        name: The name that is shown.
        subject: The identifier of the user at the provider, which never changes.
        roles: The roles in this console; none where no value is mapped.
        ends: The time (Unix) until which this description is valid.
        is_missing: The claim of the roles is missing.
        id_token: The token itself, which the provider's sign-out asks for.
        refresh_token: A token to renew this description with; None where the provider gives none.
    """

    name: str
    subject: str
    roles: tuple[Role, ...]
    ends: float
    is_missing: bool = False
    id_token: str = field(default="", repr=False)
    refresh_token: str | None = field(default=None, repr=False)


def find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Find a claim by its name or, if there is none of that name, by a path of names with dots between them.

    Returns:
        Its value; None where there is none.
    """
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def read_identity(
    claims: Mapping[str, Any], settings: OidcSettings, *, id_token: str = "", refresh_token: str | None = None
) -> Identity:
    """Read a user's name and roles from checked claims.

    Args:
        claims: The claims of the ID token, and of the user information where it was asked for.
        settings: The names of the claims, and the values of each role.
        id_token: The ID token.
        refresh_token: The refresh token, if there is one.

    Returns:
        The identity. Without a usable claim of the name, the name is the subject.
    """
    subject, name = str(claims.get("sub", "")), find_claim(claims, settings.name_claim)
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        name = subject
    found = find_claim(claims, settings.roles_claim)
    values = {v for v in (found if isinstance(found, list) else [found]) if isinstance(v, str)}
    roles = tuple(role for role, mapped in settings.roles.items() if not values.isdisjoint(mapped))
    return Identity(
        name.strip()[:_LONGEST_NAME],
        subject,
        roles,
        float(claims.get("exp", 0)),
        is_missing=found is None,
        id_token=id_token,
        refresh_token=refresh_token,
    )


def read_claims(file: Path, settings: OidcSettings) -> Identity:
    """Read an identity from a file of claims, to try a mapping of roles before users sign in.

    Args:
        file: A JSON object, such as a provider shows of an example user.
        settings: The mapping.

    Raises:
        BadInput: The file cannot be read, the claim of the roles is missing, or none of its values is mapped.
    """
    try:
        claims = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"cannot read {file}: {e.strerror or e}", code="unreadable-file") from None
    except ValueError:
        claims = None
    if not isinstance(claims, dict):
        raise BadInput(f"{file} is not a JSON object: give the claims of an ID token", code="not-json")
    identity = read_identity(claims, settings)
    name = settings.roles_claim
    if identity.is_missing:
        raise BadInput(
            f"{file} has no claim '{name}'; {nearest(name, claims)}. Set oidc.roles_claim to the claim with the roles, or "
            "have the provider add it to the ID token",
            code="missing-claim",
        )
    if not identity.roles:
        value = visible(json.dumps(find_claim(claims, name)))[:200]
        raise BadInput(
            f"{file}: no value of the claim '{name}' is mapped to a role; it is {value}: add one to [oidc.roles]",
            code="no-mapped-role",
        )
    return identity
