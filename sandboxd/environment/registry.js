'use strict';
// Serves directories of npm tarballs as a registry on loopback, for as long as
// one npm runs. What is not there is asked of the upstream registry, if there
// is one.
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');
const zlib = require('zlib');
const { spawn } = require('child_process');

const job = JSON.parse(process.env.BERTH_JOB);
const packages = new Map(); // name -> version -> {manifest, file, integrity}

// manifest is the package.json of a tarball; null where it has none.
function manifest(tarball) {
  const tar = zlib.gunzipSync(tarball, { maxOutputLength: 1 << 30 });
  const field = (at, length) => tar.toString('utf8', at, at + length).replace(/\0[^]*$/, '');
  for (let at = 0; at + 512 <= tar.length && tar[at] !== 0;) {
    const size = parseInt(field(at + 124, 12), 8) || 0;
    const type = tar[at + 156];
    if ((type === 0 || type === 48) && /^(\.\/)?[^/]+\/package\.json$/.test(field(at, 100))) {
      return JSON.parse(tar.toString('utf8', at + 512, at + 512 + size));
    }
    at += 512 + Math.ceil(size / 512) * 512;
  }
  return null;
}

for (const directory of job.directories) {
  for (const name of fs.readdirSync(directory)) {
    if (!/\.(tgz|tar\.gz)$/.test(name)) continue;
    const file = path.join(directory, name);
    try {
      const tarball = fs.readFileSync(file);
      const found = manifest(tarball);
      if (!found || typeof found.name !== 'string' || typeof found.version !== 'string') continue;
      if (!packages.has(found.name)) packages.set(found.name, new Map());
      const integrity = 'sha512-' + crypto.createHash('sha512').update(tarball).digest('base64');
      packages.get(found.name).set(found.version, { manifest: found, file, integrity });
    } catch (problem) {
      console.error(`warning: ${file} is no package: ${problem.message}`);
    }
  }
}

// compare orders versions as npm does, as far as "latest" needs it.
function compare(a, b) {
  const parts = (v) => v.split('+')[0].match(/^([^-]*)-?(.*)$/).slice(1);
  const [[coreA, preA], [coreB, preB]] = [parts(a), parts(b)];
  const order = (x, y) => {
    const [xs, ys] = [x.split('.'), y.split('.')];
    for (let i = 0; i < Math.max(xs.length, ys.length); i++) {
      if (xs[i] === undefined || ys[i] === undefined) return xs[i] === undefined ? -1 : 1;
      const numbers = /^\d+$/.test(xs[i]) && /^\d+$/.test(ys[i]);
      if (numbers && Number(xs[i]) !== Number(ys[i])) return Number(xs[i]) - Number(ys[i]);
      if (!numbers && xs[i] !== ys[i]) return xs[i] < ys[i] ? -1 : 1;
    }
    return 0;
  };
  const core = order(coreA, coreB);
  if (core !== 0 || preA === preB) return core;
  if (preA === '' || preB === '') return preA === '' ? 1 : -1;
  return order(preA, preB);
}

function latest(versions) {
  const all = [...versions.keys()].sort(compare);
  const releases = all.filter((v) => !v.split('+')[0].includes('-'));
  return (releases.length > 0 ? releases : all).pop();
}

const server = http.createServer((request, answer) => {
  const wanted = new URL(request.url, 'http://localhost').pathname;
  const base = `http://127.0.0.1:${server.address().port}`;
  const [, name, version] = decodeURIComponent(wanted).match(/^\/(.+?)\/-\/berth\/([^/]+)\.tgz$/) || [];
  const held = name && packages.get(name) && packages.get(name).get(version);
  if (held) {
    answer.writeHead(200, { 'content-type': 'application/octet-stream' });
    fs.createReadStream(held.file).pipe(answer);
    return;
  }
  const asked = decodeURIComponent(wanted.slice(1));
  const versions = packages.get(asked);
  if (versions) {
    const document = { name: asked, 'dist-tags': { latest: latest(versions) }, versions: {} };
    for (const [v, { manifest, integrity }] of versions) {
      const tarball = `${base}/${encodeURIComponent(asked)}/-/berth/${encodeURIComponent(v)}.tgz`;
      document.versions[v] = { ...manifest, dist: { tarball, integrity } };
    }
    answer.writeHead(200, { 'content-type': 'application/json' });
    answer.end(JSON.stringify(document));
    return;
  }
  if (job.upstream) {
    answer.writeHead(302, { location: job.upstream.replace(/\/$/, '') + request.url });
    answer.end();
    return;
  }
  answer.writeHead(404, { 'content-type': 'application/json' });
  answer.end(JSON.stringify({ error: 'Not found' }));
});

server.listen(0, '127.0.0.1', () => {
  const env = { ...process.env, npm_config_registry: `http://127.0.0.1:${server.address().port}/` };
  delete env.BERTH_JOB;
  const npm = spawn(job.argv[0], job.argv.slice(1), { stdio: 'inherit', env });
  npm.on('error', (problem) => {
    console.error(problem.message);
    process.exit(127);
  });
  npm.on('exit', (code) => process.exit(code === null ? 1 : code));
});
