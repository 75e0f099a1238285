// The token of this tab: kept until the tab is closed, sent in a header alone, never part of an address.

const KEY = "hydraulis.token";
let held = null;

function stored(action) {
  try {
    return action(window.sessionStorage);
  } catch {
    return null; // a browser may keep pages from storing anything; then the token lasts as long as the page
  }
}

export function token() {
  return held ?? stored((storage) => storage.getItem(KEY));
}

export function keepToken(secret) {
  held = secret;
  stored((storage) => storage.setItem(KEY, secret));
}

export function forgetToken() {
  held = null;
  stored((storage) => storage.removeItem(KEY));
}
