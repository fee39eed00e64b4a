// A provider by the library `oidc-provider`, for one test: node real_provider.mjs LIBRARY PORT REDIRECT_URI
const [library, port, redirectUri] = process.argv.slice(2);
const { Provider } = await import(library);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "helmr", client_secret: "secret", redirect_uris: [redirectUri] }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, name: id }),
  }),
  pkce: { required: () => true },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
