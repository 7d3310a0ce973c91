"""Settings of single sign-on: the section [oidc] of a TOML file, and the client's secret, which is never in that file."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from grandrounds.capabilities.console.auth.users import Role
from grandrounds.capabilities.console.server import is_loopback
from grandrounds.core.errors import BadInput
from grandrounds.core.section import Section, describe_error, error_code

CALLBACK, AFTER_SIGN_OUT = "/sso/callback", "/sign-in"
"""Paths of this console that the provider sends browsers back to."""
_REQUIRED = {
    "issuer": "the address of the provider, such as https://login.hospital.example/realms/hospital",
    "client_id": "the name under which the provider knows this console",
    "url": "the address of this console in the browser, such as https://console.hospital.example",
    "roles": "the roles of this console with the provider's values, such as [oidc.roles] clinician = ['icu-physicians']",
}
_SHARED = stat.S_IRWXG | stat.S_IRWXO


class OidcSettings(Section):
    """The section [oidc].

    Attributes:
        issuer: The provider, whose discovery document is below this address.
        client_id: The console's name at the provider.
        url: The console's address in the browser; behind a reverse proxy the proxy's.
        roles: Values of the claim by role.
        roles_claim: The claim with a user's roles or groups; a dot leads into an object ("realm_access.roles").
        name_claim: The claim with the name that pages and the access log show.
        label: The provider's name on the sign-in page.
        client_secret_file: A file with the client's secret, which only its owner can read.
        client_secret_variable: Or the environment variable with it.
        client_authentication: The way in which the secret is sent.
        scopes: The scopes that are asked for.
        ca_file: Certificates (PEM) that the provider's is checked against, instead of the system's.
        leeway: Seconds by which clocks may differ.
        local_users: Allow a file of users (--users) beside single sign-on.
    """

    issuer: str
    client_id: str = Field(min_length=1)
    url: str
    roles: dict[Role, tuple[str, ...]]
    roles_claim: str = Field("roles", min_length=1)
    name_claim: str = Field("preferred_username", min_length=1)
    label: str = Field("single sign-on", min_length=1, max_length=60)
    client_secret_file: Path | None = None
    client_secret_variable: str | None = None
    client_authentication: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    scopes: tuple[str, ...] = ("openid", "profile")
    ca_file: Path | None = None
    leeway: int = Field(60, ge=0, le=300)
    local_users: bool = True

    @property
    def redirect_uri(self) -> str:
        """The one address to which the provider sends users after a sign-in."""
        return self.url + CALLBACK

    @property
    def signed_out_uri(self) -> str:
        """The address to which the provider sends users after a sign-out."""
        return self.url + AFTER_SIGN_OUT

    @property
    def host(self) -> str:
        """The console's host name in the browser, as the Host header has it."""
        name = urlsplit(self.url).hostname or ""
        return f"[{name}]" if ":" in name else name

    @field_validator("issuer")
    @classmethod
    def _check_issuer(cls, value: str) -> str:
        parts = check_address(value)
        if parts.query or parts.fragment:
            raise ValueError(f"{value} has a query or a fragment: an issuer has neither")
        return value

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = check_address(value)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(f"{value} has a path: give the scheme, the host and the port alone")
        return value.rstrip("/")

    @field_validator("roles")
    @classmethod
    def _check_roles(cls, value: Mapping[Role, tuple[str, ...]]) -> Mapping[Role, tuple[str, ...]]:
        if not any(value.values()):
            raise ValueError("no value is mapped to a role: nobody could sign in")
        return value

    @field_validator("scopes")
    @classmethod
    def _check_scopes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in value:
            raise ValueError("'openid' is missing: add it")
        return value


def load_settings(file: Path) -> OidcSettings:
    """Load the settings of single sign-on.

    Args:
        file: A TOML file with the section [oidc]. Paths in it are relative to its folder.

    Raises:
        BadInput: The file cannot be read, or a setting is wrong; the sentence names the file.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"cannot read {file}: {e.strerror or e}", code="unreadable-file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise BadInput(f"{file} is not valid TOML: {e}", code="not-toml") from None
    section = content.get("oidc")
    if not isinstance(section, dict) or len(content) > 1:
        raise BadInput(f"{file}: settings of single sign-on are in the one section [oidc]", code="missing-setting")
    _check_keys(file, section)
    try:
        settings = OidcSettings.model_validate(section)
    except ValidationError as e:
        raise BadInput(f"{file}: oidc.{describe_error(OidcSettings, e)}", code=error_code(e)) from None
    paths = {name: getattr(settings, name) for name in ("client_secret_file", "ca_file")}
    settings = settings.model_copy(update={n: file.parent / p for n, p in paths.items() if p is not None})
    if settings.ca_file is not None and not settings.ca_file.is_file():
        raise BadInput(
            f"{file}: oidc.ca_file: {settings.ca_file} does not exist: give a PEM file", code="file-not-found"
        )
    return settings


def _check_keys(file: Path, section: Mapping[str, Any]) -> None:
    for name, meaning in _REQUIRED.items():
        if name not in section:
            raise BadInput(f"{file}: oidc.{name} is missing: add {meaning}", code="missing-setting")
    if "client_secret" in section:
        raise BadInput(
            f"{file}: a secret does not belong in this file. Write it to a file of its own with mode 0600, and give "
            "oidc.client_secret_file; and let the provider issue a new one",
            code="secret-in-settings",
        )
    if "client_secret_file" in section and "client_secret_variable" in section:
        raise BadInput(
            f"{file}: give oidc.client_secret_file or oidc.client_secret_variable, not both",
            code="conflicting-settings",
        )


def read_secret(settings: OidcSettings) -> str | None:
    """Read the client's secret from its file or environment variable.

    Returns:
        The secret; None for a public client, which has none.

    Raises:
        BadInput: It is missing or empty, or others can read its file.
    """
    file, variable = settings.client_secret_file, settings.client_secret_variable
    if file is not None:
        try:
            with file.open(encoding="utf-8") as f:
                mode = stat.S_IMODE(os.fstat(f.fileno()).st_mode)
                secret, source = f.read().strip(), str(file)
        except OSError as e:
            raise BadInput(
                f"cannot read the client's secret in {file}: {e.strerror or e}", code="unreadable-file"
            ) from None
        except UnicodeDecodeError:
            raise BadInput(f"{file} is not text: write the client's secret to it", code="not-text") from None
        if mode & _SHARED:
            raise BadInput(
                f"others can read the client's secret in {file} (mode {mode:04o}): run `chmod 600 {file}`",
                code="file-too-open",
            )
    elif variable is not None:
        secret, source = os.environ.get(variable, "").strip(), f"the environment variable {variable}"
    else:
        return None
    if not secret:
        raise BadInput(
            f"the client's secret is missing: {source} is empty; write the one that the provider shows to it",
            code="missing-secret",
        )
    return secret


def check_address(address: str) -> Any:
    """Check that an address is https, or http on loopback.

    Returns:
        Its parts (`urllib.parse.SplitResult`).

    Raises:
        ValueError: It is neither.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        raise ValueError(f"{address!r} is not an address") from None
    if not parts.hostname or parts.username is not None or not address.isprintable() or " " in address:
        raise ValueError(f"{address!r} is not an address: give one that begins with https://")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError(f"{address} is not encrypted: only https is accepted, and http on loopback")
    return parts
