// What node sees of an echo server and of a web server: client.mjs HOST ECHO-PORT WEB-PORT.
import { createHash } from "node:crypto";
import { lookup, resolve4 } from "node:dns/promises";
import http from "node:http";
import net from "node:net";

const [host, echoPort, webPort] = process.argv.slice(2);

function talk(size) {
  return new Promise((done) => {
    const sent = Buffer.alloc(size, "0123456");
    const got = [];
    const stream = net.connect({ host, port: echoPort, allowHalfOpen: true });
    let peer;
    stream.on("connect", () => {
      peer = `${stream.remoteAddress} ${stream.remoteFamily} ${stream.remotePort}`;
      stream.end(sent);
    });
    stream.on("data", (data) => got.push(data));
    stream.on("end", () => done(`${peer} ${Buffer.concat(got).equals(sent)}`));
    stream.on("error", (error) => done(`${peer} ${error.code}`));
  });
}

function fetch(agent, path) {
  return new Promise((done) => {
    const request = http.get({ host, port: webPort, path, agent }, (answer) => {
      const hash = createHash("sha256");
      const peer = answer.socket.remoteAddress;
      answer.on("data", (data) => hash.update(data));
      answer.on("end", () => done(`${answer.statusCode} ${peer} ${hash.digest("hex")}`));
    });
    request.on("error", (error) => done(error.code));
  });
}

console.log((await lookup(host)).address, await resolve4(host));
console.log(await talk(3_000_000));
const ends = await Promise.all(Array.from({ length: 50 }, (_, i) => talk(10_000 + i)));
console.log(ends.join("\n"));
const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
for (const path of ["/large", "/absent", "/small"]) console.log(await fetch(agent, path));
agent.destroy();
