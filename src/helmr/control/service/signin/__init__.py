"""How people sign in: passwords, a provider, browsers, command lines, one-time codes. SPEC 14."""
