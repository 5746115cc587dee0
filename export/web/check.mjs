// Runs an exported file in a browser, and compares the logits with the model's.
//
// In a folder with `npm install onnxruntime-web @litertjs/core playwright-core`:
//
//     node check.mjs model.onnx golden.json
//
// golden.json holds {"shape": [B, H, W, 3], "pixels": [...], "logits": [[...], ...]}, as README.md
// writes it. CHROMIUM is the program of a browser (/usr/bin/chromium).
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { chromium } from 'playwright-core';

const [file, golden] = process.argv.slice(2);
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.mjs': 'text/javascript', '.wasm': 'application/wasm' };
const PAGE = `<!doctype html><script type="importmap">{"imports": {
  "@litertjs/wasm-utils": "/node_modules/@litertjs/wasm-utils/dist/index.js"}}</script>`;

const server = http.createServer((request, response) => {
  const name = '.' + request.url;
  if (name === './') return response.setHeader('Content-Type', 'text/html').end(PAGE);
  if (!fs.existsSync(name)) return response.writeHead(404).end();
  response.setHeader('Content-Type', TYPES[path.extname(name)] ?? 'application/octet-stream');
  fs.createReadStream(name).pipe(response);
});
server.listen(0, 'localhost');

async function runOnnx({ file, pixels, shape }) {
  const ort = await import('/node_modules/onnxruntime-web/dist/ort.bundle.min.mjs');
  ort.env.wasm.wasmPaths = '/node_modules/onnxruntime-web/dist/';
  const session = await ort.InferenceSession.create('/' + file);
  const tensor = new ort.Tensor('float32', Float32Array.from(pixels), shape);
  const { logits } = await session.run({ pixels: tensor });
  return [...logits.data];
}

async function runLiteRt({ file, pixels, shape }) {
  const { Tensor, loadAndCompile, loadLiteRt } = await import('/node_modules/@litertjs/core/dist/index.js');
  await loadLiteRt('/node_modules/@litertjs/core/wasm/');
  const model = await loadAndCompile('/' + file, { accelerator: 'wasm' });
  const size = pixels.length / shape[0];
  const found = [];
  for (let i = 0; i < shape[0]; i++) { // a LiteRT file takes one image
    const image = Float32Array.from(pixels.slice(i * size, (i + 1) * size));
    const [logits] = await model.run(new Tensor(image, [1, ...shape.slice(1)]));
    found.push(...(await logits.data()));
  }
  return found;
}

const { pixels, shape, logits } = JSON.parse(fs.readFileSync(golden));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const page = await browser.newPage();
await page.goto(`http://localhost:${server.address().port}/`);
const found = await page.evaluate(file.endsWith('.onnx') ? runOnnx : runLiteRt, { file, pixels, shape });
const expected = logits.flat();
const largest = Math.max(...expected.map(Math.abs));
const difference = Math.max(...expected.map((value, i) => Math.abs(value - found[i]))) / largest;
console.log(`${file}: chromium ${browser.version()}, difference ${difference.toExponential(1)} of the largest logit`);
await browser.close();
server.close();
