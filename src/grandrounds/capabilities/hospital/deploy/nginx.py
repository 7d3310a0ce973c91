"""nginx configurations: the gateways in front of the SuperLink, the relay, and the small proxy on an operator's machine.

A SuperLink serves nodes, operators and its own workers on one port. The gateway passes ten fleet routes to everybody (the
SuperLink checks a node's signature), control routes to holders of an operator's certificate, and nothing else. The passed
path is built from the match, never copied from the request, so that gateway and SuperLink cannot interpret one path
differently.

Further gateways are other ways to the same SuperLink, for sites only: they pass fleet routes and no control routes. One on
the server's host connects to the SuperLink on loopback. One on another host connects to the relay, a second nginx beside the
SuperLink that asks for the certificate of a gateway.

All paths are relative: `nginx -p FOLDER -c nginx.conf` finds certificates beside the configuration.
"""

from __future__ import annotations

import ipaddress
import re

from grandrounds.capabilities.hospital.deploy.consortium import Server
from grandrounds.capabilities.hospital.keeper.network.route import Endpoint

FLEET = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
    "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
"""Routes that a registered node needs; only operators may call `register-node` and `unregister-node`."""

BODY = "8m"
"""Largest request, kept in memory: Flower splits arrays into chunks of 5 MiB, and no update is written to disk here."""

_TOP = """\
# {title}
# Start it with: nginx -e stderr -p FOLDER -c nginx.conf
daemon off;
worker_processes auto;
worker_shutdown_timeout 30s;   # after a reload old connections end, those of revoked operators too
pid run/nginx.pid;
error_log logs/error.log warn;
events {{ worker_connections 4096; }}
http {{
  server_tokens off;
  default_type application/octet-stream;
  client_body_temp_path run/body;
  proxy_temp_path run/proxy;
  fastcgi_temp_path run/fastcgi;
  uwsgi_temp_path run/uwsgi;
  scgi_temp_path run/scgi;
  client_max_body_size {body};
  client_body_buffer_size {body};
  proxy_max_temp_file_size 0;
  proxy_http_version 1.1;
  log_format plain '$time_iso8601 $remote_addr $status $request_method $uri $request_length $bytes_sent {verify} $request_time';
  access_log logs/access.log plain;
"""

_LIMITS = """\
  client_header_timeout 20s;
  client_body_timeout 60s;
  keepalive_timeout 75s;
  large_client_header_buffers 4 8k;
  limit_req_zone $binary_remote_addr zone=requests:10m rate=200r/s;
  limit_conn_zone $binary_remote_addr zone=connections:10m;
  limit_req_status 429;
  limit_conn_status 429;
"""

_TLS = """\
    ssl_certificate     {pki}/gateway.pem;
    ssl_certificate_key {pki}/gateway.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20;
    ssl_session_cache off;       # a resumed session would skip the list of revoked certificates
    ssl_session_tickets off;
    proxy_ssl_trusted_certificate {pki}/server-ca.pem;
    proxy_ssl_verify on;
    proxy_ssl_name localhost;
    proxy_set_header Connection "";
    proxy_set_header Host localhost;
    proxy_read_timeout 75s;
"""

_OPERATORS = """\
    ssl_client_certificate pki/operator-ca.pem;
    ssl_crl pki/operator.crl;
    ssl_verify_client optional;  # nodes have none: they sign their requests instead
    ssl_verify_depth 1;
"""

_FLEET = f"""\
    location ~ ^/v1/fleet/(?<route>{"|".join(FLEET)})$ {{
      limit_except POST {{ deny all; }}
      proxy_pass https://superlink/v1/fleet/$route;
    }}
"""

_PACE = """\
    limit_req zone=requests burst=400 nodelay;
    limit_conn connections 128;
"""


def gateway_config(server: Server) -> str:
    """Write the gateway's configuration."""
    top = _TOP.format(
        title="The gateway in front of the SuperLink.", body=BODY, verify='$ssl_client_verify "$ssl_client_s_dn"'
    )
    return f"""{top}{_LIMITS}\
  upstream superlink {{ server 127.0.0.1:{server.superlink_port}; keepalive 32; }}
  map "$ssl_client_verify" $operator {{ default 0; SUCCESS 1; }}
  server {{
{_listen(server)}\
{_TLS.format(pki="pki")}\
{_OPERATORS}\
{_PACE}\
{_FLEET}\
    location ~ ^/v1/control/(?<route>[a-z0-9-]+)$ {{
      if ($operator = 0) {{ return 403; }}
      limit_except POST {{ deny all; }}
      proxy_buffering off;
      proxy_read_timeout 3600s;  # logs are streamed
      proxy_pass https://superlink/v1/control/$route;
    }}
    location /v1/control {{ return 403; }}
    location = /health {{
      if ($operator = 0) {{ return 403; }}
      proxy_pass https://superlink/health;
    }}
    location / {{ return 404; }}
  }}
}}
"""


def further_gateway_config(server: Server, gateway: Endpoint) -> str:
    """Write the configuration of a further gateway, which passes fleet routes only."""
    top = _TOP.format(title=f"The further gateway {gateway} of the SuperLink, for sites.", body=BODY, verify="-")
    relay = server.relay
    upstream = f"127.0.0.1:{server.superlink_port}" if relay is None else str(relay)
    client = "" if relay is None else "    proxy_ssl_certificate pki/relay.pem;\n    proxy_ssl_certificate_key pki/relay.key;\n"
    return f"""{top}{_LIMITS}\
  upstream superlink {{ server {upstream}; keepalive 32; }}
  server {{
{_listen_everywhere(gateway.port) if relay is not None or not gateway.is_address else _listen_at(gateway)}\
{_TLS.format(pki="pki")}\
{client}\
{_PACE}\
{_FLEET}\
    location / {{ return 404; }}
  }}
}}
"""


def relay_config(server: Server) -> str:
    """Write the configuration of the relay, which passes fleet routes of the listed gateways to the SuperLink.

    A gateway that is no longer listed is refused, though its certificate is valid.
    """
    assert server.relay is not None
    top = _TOP.format(title="The relay for gateways on other hosts.", body=BODY, verify='"$ssl_client_s_dn"')
    listed = "".join(f' "~^CN={re.escape(str(gateway))}," 1;' for gateway in server.gateways)
    return f"""{top}\
  upstream superlink {{ server 127.0.0.1:{server.superlink_port}; keepalive 32; }}
  map "$ssl_client_s_dn" $listed {{ default 0;{listed} }}
  server {{
    listen {server.relay} ssl;
{_TLS.format(pki="../pki")}\
    ssl_client_certificate ../pki/server-ca.pem;
    ssl_verify_client on;
    ssl_verify_depth 1;
    if ($listed = 0) {{ return 403; }}
{_FLEET}\
    location / {{ return 404; }}
  }}
}}
"""


def operator_config(server: Server, *, port: int) -> str:
    """Write the proxy of the operator's machine, which adds the certificate that the `flwr` command cannot send."""
    return f"""{_TOP.format(title="On an operator's machine: adds the client certificate.", body=BODY, verify="-")}\
  server {{
    listen 127.0.0.1:{port};
    proxy_buffering off;
    proxy_read_timeout 3600s;
    proxy_set_header Connection "";
    proxy_ssl_certificate operator.pem;
    proxy_ssl_certificate_key operator.key;
    proxy_ssl_trusted_certificate server-ca.pem;
    proxy_ssl_verify on;
    proxy_ssl_name {_certificate_name(server)};
    proxy_ssl_server_name on;
    proxy_ssl_protocols TLSv1.2 TLSv1.3;
    location /v1/control/ {{ proxy_pass https://{server.endpoint}; }}
    location / {{ return 404; }}
  }}
}}
"""


def _listen(server: Server) -> str:
    """Choose the addresses to listen on: all interfaces, or loopback if the server's address is loopback."""
    if not server.is_loopback:
        return _listen_everywhere(server.port)
    address = server.address if ":" in server.address else "127.0.0.1"
    return _listen_at(Endpoint(address, server.port))


def _listen_at(endpoint: Endpoint) -> str:
    return f"    listen {endpoint} ssl;\n"


def _listen_everywhere(port: int) -> str:
    return f"    listen {port} ssl;\n    listen [::]:{port} ssl;  # IPv6: delete this line on a host whose kernel has none\n"


def _certificate_name(server: Server) -> str:
    """Choose a name in the gateway's certificate. nginx compares DNS names only, so for an IP address it is `localhost`."""
    try:
        ipaddress.ip_address(server.address)
    except ValueError:
        return server.address
    return "localhost"
