// An OpenID provider on loopback for tests: panva's oidc-provider with a sign-in page, a sign-out page and accounts from a file.
//   node provider.mjs SETTINGS.json
// SETTINGS: modules, port, issuer, accounts (a file: claims by name, read at each use), client (as it is registered), lifetime (seconds).
import {createServer} from "node:http";
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const settings = JSON.parse(readFileSync(process.argv[2]));
const found = createRequire(`${settings.modules}/`).resolve("oidc-provider");
const {default: Provider} = await import(pathToFileURL(found));
const accounts = () => JSON.parse(readFileSync(settings.accounts));
const page = body => `<!doctype html><html lang="en"><title>Provider</title><body>${body}</body></html>`;

const provider = new Provider(settings.issuer, {
  clients: [settings.client],
  claims: {openid: ["sub"], profile: ["preferred_username", "groups"]},
  cookies: {keys: ["a key of this test"]},
  features: {
    devInteractions: {enabled: false},
    rpInitiatedLogout: {
      enabled: true,
      logoutSource: (ctx, form) => { ctx.body = page(`${form}<button form="op.logoutForm" name="logout" value="yes">Sign out</button>`); },
    },
  },
  findAccount: (ctx, id) => {
    const claims = accounts()[id];
    return claims && {accountId: id, claims: () => ({sub: `subject of ${id}`, preferred_username: id, ...claims})};
  },
  interactions: {url: (ctx, interaction) => `/interaction/${interaction.uid}`},
  issueRefreshToken: async (ctx, client) => settings.refresh && client.grantTypeAllowed("refresh_token"),
  loadExistingGrant: async ctx => { // everything that is asked for is granted
    const grant = new ctx.oidc.provider.Grant({clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId});
    grant.addOIDCScope(ctx.oidc.params.scope);
    await grant.save();
    return grant;
  },
  pkce: {required: () => true, methods: ["S256"]},
  rotateRefreshToken: true,
  ttl: {IdToken: settings.lifetime, AccessToken: settings.lifetime, RefreshToken: 3600, Session: 3600, Interaction: 600, Grant: 3600},
});

const answer = provider.callback();
createServer(async (request, response) => {
  if (!request.url.startsWith("/interaction/")) return answer(request, response);
  if (request.method === "GET") {
    response.setHeader("content-type", "text/html");
    return response.end(page('<form method="post"><input name="login" aria-label="Account"><button>Sign in</button></form>'));
  }
  let body = "";
  for await (const part of request) body += part;
  const login = new URLSearchParams(body).get("login");
  const result = login in accounts() ? {login: {accountId: login}} : {error: "access_denied"};
  await provider.interactionFinished(request, response, result, {mergeWithLastSubmission: false});
}).listen(settings.port, "127.0.0.1");
