// Names of sites, patients and columns come from other people's tables: control characters and marks of text direction are shown as
// escapes (as errors.visible does), and a name is put in a <bdi>, so that it cannot reverse adjacent numbers.
"use strict";
(() => {
  const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
  const escaped = mark => {
    const code = mark.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  };
  const visible = text => String(text ?? "").replace(hidden, escaped);
  const bdi = text => Object.assign(document.createElement("bdi"), {textContent: visible(text)});
  window.names = {visible, bdi};
})();
