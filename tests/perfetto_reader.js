// Perfetto's own trace processor (WebAssembly, as its web page uses it) behind two pipes.
//
// node perfetto_reader.js DIRECTORY: reads messages with a length of four bytes in front from stdin, writes the
// replies to stdout. DIRECTORY holds engine_bundle.js and the .wasm files of Perfetto's page.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const directory = process.argv[2];
const say = (text) => fs.writeSync(2, `${text}\n`);

function writeAll(bytes) {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(1, bytes, done, bytes.length - done);
}

function fill(buffer) {
  for (let done = 0; done < buffer.length; ) {
    const count = fs.readSync(0, buffer, done, buffer.length - done, null);
    if (!count) return false;
    done += count;
  }
  return true;
}

// A web worker's world: the bundle fetches its .wasm file synchronously and then waits for a port.
class XMLHttpRequest {
  open(_method, url) {
    this.file = path.join(directory, path.basename(url));
  }
  send() {
    const data = fs.readFileSync(this.file);
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
}
const scope = {
  WorkerGlobalScope: class {},
  XMLHttpRequest,
  location: { href: "http://localhost/engine_bundle.js" },
  console: { log: say, warn: say, error: say },
  TextDecoder, TextEncoder, URL, performance, crypto: globalThis.crypto, setTimeout, clearTimeout,
};
scope.self = scope;
vm.createContext(scope);
vm.runInContext(fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8"), scope);

setTimeout(() => {
  const port = { onmessage: null, postMessage: writeAll };
  scope.onmessage({ data: port });
  const Bytes = vm.runInContext("Uint8Array", scope);
  const head = Buffer.alloc(4);
  while (fill(head)) {
    const message = new Bytes(head.readUInt32LE(0));
    if (!fill(message)) break;
    port.onmessage({ data: message });
  }
  process.exit(0);
}, 0);
