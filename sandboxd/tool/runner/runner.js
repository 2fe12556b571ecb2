// What runs a function's JavaScript. It is started by boot.js before there is a
// job, waits for one on descriptor 4, and ends with it. Descriptor 3 takes the
// result: see runner.py for its form.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const Module = require('module');
const path = require('path');
const vm = require('vm');

const KEY = 32; // bytes before the job's JSON
const RESULT = 3;
const FAILED = 199; // the exit code when this program itself fails
const MOST_RESULT = 16 << 20; // bytes
const MOST_DEPTH = 500;
const MOST_MESSAGE = 1000; // characters
const MOST_TRACEBACK = 20000;

// Taken before the function's source can change what they are.
const { writeSync, closeSync, writeFileSync } = fs;
const { createHash } = crypto;
const { parse, stringify } = JSON;
const exit = process.exit.bind(process);
const oomScore = (() => {
  try {
    const score = Number(fs.readFileSync('/proc/self/oom_score_adj', 'latin1'));
    return score > 0 ? Math.min(score + 50, 1000) : 0;
  } catch {
    return 0;
  }
})();
createHash('sha256').update('').digest(); // the first one loads the library
void [process.stdout, process.stderr]; // and these their streams

const body = take(Number(take(8).readBigUInt64BE()));
closeSync(4);
const key = body.subarray(0, KEY);
const job = parse(body.toString('utf8', KEY));
let sent = false;
if (oomScore) {
  try {
    writeFileSync('/proc/self/oom_score_adj', String(oomScore)); // before what waits for the next job
  } catch {}
}
write(Buffer.from('T'));

process.on('uncaughtException', (e) => finish({ error: raised(e) }));
process.on('beforeExit', () => {
  finish({ error: { kind: 'exception', name: 'Error', message: 'nothing is left to do, and the promise of the function was never settled' } });
});
perform().then(
  (value) => finish({ return: value }),
  (e) => finish({ error: raised(e) }),
);

function write(text) {
  for (let at = 0; at < text.length; ) at += writeSync(RESULT, text, at);
}

// finish sends the first answer, and ends the process.
function finish(answer) {
  if (sent) return;
  sent = true;
  let payload;
  try {
    payload = Buffer.from(wellFormed('error' in answer ? stringify(answer) : `{"return":${encode(answer.return, [])}}`));
    if (payload.length > MOST_RESULT) throw new RangeError(`the result has ${payload.length} bytes (max ${MOST_RESULT})`);
  } catch (e) {
    payload = Buffer.from(wellFormed(stringify({ error: raised(e) })));
  }
  const size = Buffer.alloc(8);
  size.writeBigUInt64BE(BigInt(payload.length));
  const sum = createHash('sha256').update(key).update(size).update(payload).digest();
  try {
    write(Buffer.concat([size, sum, payload]));
  } catch {
    exit(FAILED);
  }
  exit(0);
}

async function perform() {
  setEnvironment();
  const file = path.join(process.cwd(), `tool ${job.name}.js`);
  const module = { exports: {}, id: '.', filename: file, loaded: false, children: [], paths: [] };
  const require = Module.createRequire(file);
  const options = { filename: file };
  if (vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER) {
    options.importModuleDynamically = vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  }
  const source = `${job.source_code}\n;return typeof ${job.name} === 'undefined' ? undefined : ${job.name};`;
  let run;
  try {
    run = vm.compileFunction(source, ['exports', 'require', 'module', '__filename', '__dirname'], options);
  } catch (e) {
    if (e instanceof SyntaxError && /import statement|import\.meta|token 'export'/.test(e.message)) {
      e.message += ' (a slot runs scripts: have import and export turned into require and exports first)';
    }
    throw e;
  }
  const named = run.call(module.exports, module.exports, require, module, file, path.dirname(file));
  const found = [named, module.exports && module.exports[job.name], module.exports && module.exports.default, module.exports];
  const call = found.find((f) => typeof f === 'function');
  if (!call) throw new ReferenceError(`the source defines no function '${job.name}'`);
  return await call(...positional());
}

// positional is the arguments in the order in which functions take them:
// what is required first, then as the schema has them; a gap is undefined.
function positional() {
  const args = job.args || {};
  const schema = (job.json_schema && job.json_schema.parameters) || job.json_schema || {};
  const declared = Object.keys(schema.properties || {});
  const required = (Array.isArray(schema.required) ? schema.required : []).filter((n) => declared.includes(n));
  const order = [...new Set([...required, ...declared])];
  const values = order.map((n) => (Object.hasOwn(args, n) ? args[n] : undefined));
  while (values.length > 0 && !Object.hasOwn(args, order[values.length - 1])) values.pop();
  return values;
}

function setEnvironment() {
  for (const [k, v] of Object.entries(job.env || {})) {
    if (v === null) delete process.env[k];
    else process.env[k] = v;
  }
  if (job.bin) process.env.PATH = job.bin + path.delimiter + (process.env.PATH || '');
  const modules = [job.modules, process.env.NODE_PATH].filter(Boolean).join(path.delimiter);
  if (modules) {
    process.env.NODE_PATH = modules;
    Module._initPaths();
  }
  process.argv = [process.argv[0], job.name];
  if (job.directory) {
    fs.mkdirSync(job.directory, { recursive: true });
    process.chdir(job.directory);
  }
}

// encode is JSON.stringify that writes big integers, numbers that JSON lacks,
// maps and sets, and refuses cycles. It is undefined for what JSON leaves out.
function encode(value, around, inside) {
  if (value !== null && value !== undefined && typeof value.toJSON === 'function') value = value.toJSON();
  switch (typeof value) {
    case 'bigint':
      return value.toString();
    case 'number':
      return Number.isFinite(value) ? stringify(value) : `"${value}"`;
    case 'string':
    case 'boolean':
      return stringify(value);
    case 'undefined':
      return inside ? undefined : 'null';
    case 'function':
    case 'symbol':
      return inside ? undefined : stringify(String(value));
  }
  if (value === null) return 'null';
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return encode(value.valueOf(), around, inside);
  if (around.includes(value)) throw new TypeError('the result contains itself');
  if (around.length >= MOST_DEPTH) throw new RangeError(`the result is nested deeper than ${MOST_DEPTH} levels`);
  around.push(value);
  const list = Array.isArray(value) || value instanceof Set || (ArrayBuffer.isView(value) && !(value instanceof DataView));
  let text;
  if (list) {
    text = '[' + Array.from(value, (v) => encode(v, around, true) ?? 'null').join(',') + ']';
  } else {
    const fields = [];
    for (const [k, v] of value instanceof Map ? value : Object.entries(value)) {
      const encoded = encode(v, around, true);
      if (encoded !== undefined) fields.push(stringify(String(k)) + ':' + encoded);
    }
    text = '{' + fields.join(',') + '}';
  }
  around.pop();
  return text;
}

// wellFormed is the JSON text without lone surrogates, which strict parsers
// refuse: stringify escapes them, and no whole pair.
function wellFormed(text) {
  if (!text.includes('\\ud')) return text;
  return text.replace(/\\(?:ud[89a-f][0-9a-f]{2}|.)/g, (escape) => (escape.length > 2 ? '\ufffd' : escape));
}

function raised(e) {
  let name = 'Error';
  let message = '';
  let traceback = '';
  try {
    const error = e !== null && typeof e === 'object' && 'message' in e;
    name = (error && (e.name || (e.constructor && e.constructor.name))) || 'Error';
    message = error ? String(e.message) : typeof e === 'object' ? encode(e, []) : String(e);
    if (error && typeof e.stack === 'string') {
      traceback = e.stack.split('\n').filter((line) => !/berth-runner|\(node:internal\//.test(line)).join('\n').slice(0, MOST_TRACEBACK);
    }
  } catch {
    message = message || '<no message: the exception raised when it was asked>';
  }
  return { kind: 'exception', name: String(name), message: Array.from(message.slice(0, 2 * MOST_MESSAGE)).slice(0, MOST_MESSAGE).join(''), traceback };
}
