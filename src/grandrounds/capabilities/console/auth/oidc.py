"""OpenID Connect: the provider's endpoints and keys, the exchange of codes, and the checks of ID tokens.

Follows OpenID Connect Core 1.0 (section 3.1.3.7 for ID tokens), Discovery 1.0, RP-Initiated Logout 1.0, PKCE (RFC 7636, S256
only) and the issuer of an authorization response (RFC 9207). Tokens are fetched and claims are checked by Authlib, signatures by
joserfc.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import requests
from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from grandrounds.capabilities.console.auth.oidc_claims import Identity, find_claim, read_identity
from grandrounds.capabilities.console.auth.oidc_settings import OidcSettings, check_address
from grandrounds.capabilities.console.server import is_loopback
from grandrounds.core.errors import BadInput, GrandRoundsError, visible

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures that are accepted: by a key pair. "none" proves nothing, and HS256 would make the public keys secrets."""
TIMEOUT = 10.0
"""Seconds for an answer of the provider."""
_KEYS_AGE, _KEYS_AGAIN = 3600.0, 30.0  # seconds after which keys are read again: in any case, and for an unknown key


class SignInFault(GrandRoundsError):
    """A sign-in at the provider that is refused. `code` is the kind of fault, for the access log."""


class Unreachable(GrandRoundsError):
    """The provider does not answer."""


@dataclass(frozen=True)
class Endpoints:
    """The provider's addresses and abilities, from its discovery document."""

    authorization: str
    token: str
    keys: str
    userinfo: str | None
    sign_out: str | None
    algorithms: tuple[str, ...]
    names_issuer: bool

    @classmethod
    def parse(cls, document: Mapping[str, Any], settings: OidcSettings) -> Endpoints:
        """Check a discovery document.

        Raises:
            BadInput: It is of another issuer, or lacks what single sign-on needs.
        """
        where = f"the provider {settings.issuer}"
        if document.get("issuer") != settings.issuer:
            raise BadInput(
                f"{where} calls itself {visible(str(document.get('issuer')))[:200]}: write exactly that as oidc.issuer, "
                "if it is your provider",
                code="wrong-issuer",
            )
        addresses: dict[str, str | None] = {}
        for name, is_required in _ENDPOINTS.items():
            address = document.get(name)
            if address is None and not is_required:
                addresses[name] = None
                continue
            try:
                check_address(str(address or ""))
            except ValueError as e:
                raise BadInput(f"{where}: {name}: {visible(str(e))}", code="unsuitable-provider") from None
            addresses[name] = str(address)
        offered = document.get("id_token_signing_alg_values_supported", ["RS256"])
        algorithms = tuple(a for a in ALGORITHMS if a in offered)
        if not algorithms:
            raise BadInput(
                f"{where} signs ID tokens by none of {', '.join(ALGORITHMS)}: choose one of them there",
                code="unsuitable-provider",
            )
        methods = document.get("code_challenge_methods_supported")
        if methods is not None and "S256" not in methods:
            raise BadInput(f"{where} does not offer PKCE with S256: turn it on there", code="unsuitable-provider")
        return cls(
            authorization=str(addresses["authorization_endpoint"]),
            token=str(addresses["token_endpoint"]),
            keys=str(addresses["jwks_uri"]),
            userinfo=addresses["userinfo_endpoint"],
            sign_out=addresses["end_session_endpoint"],
            algorithms=algorithms,
            names_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        )


_ENDPOINTS = {
    "authorization_endpoint": True,
    "token_endpoint": True,
    "jwks_uri": True,
    "userinfo_endpoint": False,
    "end_session_endpoint": False,
}
"""Endpoints of a discovery document, and whether one must be there."""


class Provider:
    """An OpenID provider.

    Args:
        settings: The settings of single sign-on.
        endpoints: As `discover` found them.
        secret: The client's secret; None for a public client.
    """

    def __init__(self, settings: OidcSettings, endpoints: Endpoints, secret: str | None) -> None:
        self.settings, self.endpoints = settings, endpoints
        self._secret = secret
        self._keys: KeySet | None = None
        self._keys_read = -_KEYS_AGE
        self._turn = threading.Lock()

    @property
    def has_secret(self) -> bool:
        """False for a public client."""
        return self._secret is not None

    @classmethod
    def discover(cls, settings: OidcSettings, secret: str | None) -> Provider:
        """Read the provider's discovery document and its keys.

        Raises:
            BadInput: The provider cannot be reached, is another one, or does not offer what is needed.
        """
        address = f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            document = _get_json(settings, address)
            provider = cls(settings, Endpoints.parse(document, settings), secret)
            provider._read_keys()
        except (Unreachable, SignInFault) as e:
            raise BadInput(
                f"{e}: check oidc.issuer, the network between this machine and the provider, and oidc.ca_file",
                code="provider-unreachable",
            ) from None
        return provider

    def authorization_url(self, *, state: str, nonce: str, verifier: str, again: bool = False) -> str:
        """Build the address at the provider where a user signs in; with `again` it asks for the credentials in any case."""
        prompt = {"prompt": "login"} if again else {}
        with self._client() as client:
            url, _ = client.create_authorization_url(
                self.endpoints.authorization, state=state, nonce=nonce, code_verifier=verifier, **prompt
            )
        return str(url)

    def exchange(self, code: str, *, nonce: str, verifier: str) -> Identity:
        """Exchange the code of a sign-in for the user's identity.

        Args:
            code: The code, as the browser brought it.
            nonce: The nonce of this sign-in.
            verifier: The secret of this sign-in, of which the provider got the hash (PKCE).

        Raises:
            SignInFault: The provider refuses the code, or its answer does not pass the checks.
            Unreachable: The provider does not answer.
        """
        tokens = self._fetch("fetch_token", code=code, code_verifier=verifier, grant_type="authorization_code")
        return self._identify(tokens, nonce=nonce)

    def renew(self, identity: Identity) -> Identity:
        """Ask the provider for the current description of a user, with the refresh token.

        Raises:
            SignInFault: The user's session at the provider has ended, or the answer does not pass the checks.
            Unreachable: The provider does not answer.
        """
        tokens = self._fetch("refresh_token", refresh_token=identity.refresh_token)
        new = self._identify({"refresh_token": identity.refresh_token, **tokens}, nonce=None)
        if new.subject != identity.subject:
            raise SignInFault("the provider renewed the session of another user", code="other-subject")
        return new

    def sign_out_url(self, identity: Identity) -> str | None:
        """Build the address that ends a user's session at the provider; None where it offers none."""
        if self.endpoints.sign_out is None:
            return None
        query = {
            "id_token_hint": identity.id_token,
            "client_id": self.settings.client_id,
            "post_logout_redirect_uri": self.settings.signed_out_uri,
        }
        mark = "&" if "?" in self.endpoints.sign_out else "?"
        return f"{self.endpoints.sign_out}{mark}{urlencode(query)}"

    def _identify(self, tokens: Mapping[str, Any], *, nonce: str | None) -> Identity:
        token, access = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(token, str):
            raise SignInFault("the provider's answer has no ID token", code="no-id-token")
        claims = self._check(token, access_token=access, nonce=nonce)
        if (
            find_claim(claims, self.settings.roles_claim) is None
            and self.endpoints.userinfo
            and isinstance(access, str)
        ):
            info = _get_json(self.settings, self.endpoints.userinfo, token=access)
            if info.get("sub") != claims["sub"]:
                raise SignInFault("the provider's user information is of another user", code="other-subject")
            claims = {**info, **claims}
        refresh = tokens.get("refresh_token")
        return read_identity(
            claims, self.settings, id_token=token, refresh_token=refresh if isinstance(refresh, str) else None
        )

    def _check(self, token: str, *, access_token: object, nonce: str | None) -> dict[str, Any]:
        """Check an ID token: signature, issuer, audience, times, nonce and the hash of the access token."""
        options = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": self.settings.client_id},
        }
        params = {"nonce": nonce, "client_id": self.settings.client_id, "access_token": access_token}
        try:
            decoded = self._decode(token)
            claims = CodeIDToken(decoded.claims, decoded.header, options, params)
            claims.validate(leeway=self.settings.leeway)
        except (JoseError, ValueError, TypeError, LookupError) as e:
            kind = getattr(e, "error", type(e).__name__)
            raise SignInFault(f"the ID token is not valid: {visible(str(e))[:200]}", code=str(kind)) from None
        return dict(claims)

    def _decode(self, token: str) -> jwt.Token:
        with self._turn:
            if self._keys is None or time.monotonic() - self._keys_read > _KEYS_AGE:
                self._read_keys()
            assert self._keys is not None
            try:
                return jwt.decode(token, self._keys, algorithms=self.endpoints.algorithms)
            except InvalidKeyIdError:  # the provider may sign with a new key
                if time.monotonic() - self._keys_read < _KEYS_AGAIN:
                    raise
                self._read_keys()
                return jwt.decode(token, self._keys, algorithms=self.endpoints.algorithms)

    def _read_keys(self) -> None:
        document = _get_json(self.settings, self.endpoints.keys)
        try:
            self._keys = KeySet.import_key_set({"keys": list(document["keys"])})
        except (JoseError, KeyError, ValueError, TypeError):
            raise SignInFault(f"{self.endpoints.keys} has no keys that can be read", code="no-keys") from None
        self._keys_read = time.monotonic()

    def _fetch(self, method: str, **grant: Any) -> dict[str, Any]:
        """Ask the token endpoint, by a method of Authlib's client."""
        with self._client() as client:
            ask = getattr(client, method)
            try:
                return dict(ask(self.endpoints.token, allow_redirects=False, verify=_trust(self.settings), **grant))
            except OAuthError as e:
                said = visible(f"{e.error}: {e.description or ''}")[:200]
                raise SignInFault(
                    f"the provider refused the sign-in ({said})", code=visible(str(e.error))[:60]
                ) from None
            except requests.RequestException as e:
                raise _unreachable(self.endpoints.token, e) from None
            except ValueError:
                raise SignInFault("the provider's answer cannot be read", code="unreadable-answer") from None

    def _client(self) -> OAuth2Session:
        settings = self.settings
        client = OAuth2Session(
            client_id=settings.client_id,
            client_secret=self._secret,
            token_endpoint_auth_method="none" if self._secret is None else settings.client_authentication,
            scope=" ".join(settings.scopes),
            redirect_uri=settings.redirect_uri,
            code_challenge_method="S256",
            default_timeout=TIMEOUT,
        )
        client.register_client_auth_method(("client_secret_basic", _basic))
        client.trust_env = _uses_environment(settings)
        return client


def _basic(client: Any, method: str, uri: str, headers: dict[str, str], body: str) -> tuple[str, dict[str, str], str]:
    """Add the Authorization header of client_secret_basic, with both parts encoded as RFC 6749 (2.3.1) asks; Authlib does not."""
    pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
    headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return uri, headers, body


def _get_json(settings: OidcSettings, address: str, *, token: str | None = None) -> dict[str, Any]:
    """Read a JSON object from the provider."""
    headers = {"accept": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})
    with requests.Session() as session:
        session.trust_env = _uses_environment(settings)
        try:
            answer = session.get(
                address, headers=headers, timeout=TIMEOUT, allow_redirects=False, verify=_trust(settings)
            )
        except requests.RequestException as e:
            raise _unreachable(address, e) from None
    if answer.status_code != 200:
        raise Unreachable(f"{address} answers HTTP {answer.status_code}", code="provider-unreachable")
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SignInFault(f"{address} does not answer with a JSON object", code="unreadable-answer")
    return content


def _uses_environment(settings: OidcSettings) -> bool:
    """Tell whether variables such as HTTPS_PROXY apply: not for a provider on loopback."""
    return not is_loopback(urlsplit(settings.issuer).hostname or "")


def _trust(settings: OidcSettings) -> str | bool:
    """Return the file of certificates that are trusted; True for those of the system."""
    return True if settings.ca_file is None else str(settings.ca_file)


def _unreachable(address: str, e: Exception) -> Unreachable:
    kind = _KINDS.get(type(e), "no connection")
    return Unreachable(f"the provider does not answer at {address} ({kind})", code="provider-unreachable")


_KINDS: dict[type[Exception], str] = {
    requests.exceptions.SSLError: "its certificate is not accepted",
    requests.exceptions.ConnectTimeout: "no connection in time",
    requests.exceptions.ReadTimeout: "no answer in time",
}
