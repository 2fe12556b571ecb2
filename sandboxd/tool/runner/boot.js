const fs = require('fs');
const take = (size) => {
  const text = Buffer.alloc(size);
  for (let at = 0, n; at < size; at += n) {
    n = fs.readSync(4, text, at, size - at, null);
    if (n === 0) process.exit(0);
  }
  return text;
};
const source = take(Number(take(8).readBigUInt64BE())).toString();
require('vm').runInThisContext('(function (require, take) {' + source + '\n})', { filename: 'berth-runner' })(require, take);
