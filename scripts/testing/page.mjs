// Opens the page of export/web in Chromium: `scripts/check-page` runs it.
import assert from 'node:assert';
import fs from 'node:fs';
import path from 'node:path';
import { chromium } from 'playwright-core';

const [url, folder, pictures] = process.argv.slice(2);
const { labels, images } = JSON.parse(fs.readFileSync(path.join(folder, 'golden.json')));
const file = (name) => path.join(folder, 'images', name);
const { card } = await (await fetch(`${url}page.json`)).json();
const TOLERANCE = Math.max(card.tolerance, 1e-3); // of the largest logit

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
console.log(`Chromium ${browser.version()}`);

async function open(options = {}, before = () => {}) {
  const page = await browser.newPage(options);
  page.on('pageerror', (error) => assert.fail(error));
  page.on('request', (request) => assert.ok(/^(blob|data):/.test(request.url()) || request.url().startsWith(url)));
  await before(page);
  await page.goto(url);
  return page;
}

// In the page: what it computes of a file, and what the canvas's own resize gives.
async function compute({ name, bytes, runtime }) {
  const { classify, decode, runner } = await import('./page.mjs');
  const { resizedSize } = await import('./preprocess.mjs');
  const { card } = await (await fetch('page.json')).json();
  const data = Uint8Array.from(atob(bytes), (x) => x.charCodeAt());
  const image = new File([data], name);
  const { logits, pixels, milliseconds } = await classify(image, runtime);
  const { width, height, data: rgba } = await decode(image, card.preprocessing);
  const [rows, columns] = card.input_shape;
  const larger = resizedSize([height, width], [rows, columns], card.preprocessing.library, card.preprocessing);
  const source = new OffscreenCanvas(width, height);
  source.getContext('2d').putImageData(new ImageData(rgba, width, height), 0, 0);
  const context = new OffscreenCanvas(columns, rows).getContext('2d');
  context.imageSmoothingQuality = 'high';
  const [top, left] = [larger[0] - rows, larger[1] - columns].map((x) => Math.floor(x / 2));
  context.drawImage(source, -left, -top, larger[1], larger[0]);
  const drawn = context.getImageData(0, 0, columns, rows).data.filter((_, i) => i % 4 < 3);
  const other = await (await runner(runtime))(
    Float32Array.from(drawn), [1, ...card.input_shape], card.output ?? 'logits');
  return { logits, milliseconds, pixels: [...pixels], drawn: [...drawn], other: [...other] };
}

const best = (logits) => logits.map((_, i) => i).sort((a, b) => logits[b] - logits[a]);
const largest = (a, b) => a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i])), 0);
const mean = (a, b) => a.reduce((sum, x, i) => sum + Math.abs(x - b[i]), 0) / a.length;

async function compare(page, runtime, name) {
  const bytes = fs.readFileSync(file(name)).toString('base64');
  const found = await page.evaluate(compute, { name, bytes, runtime });
  const { logits, pixels: encoded } = images[name];
  const stored = Buffer.from(encoded, 'base64');
  const pixels = Array.from({ length: stored.length / 4 }, (_, i) => stored.readFloatLE(4 * i));
  const scale = Math.max(...logits.map(Math.abs), 1);
  const difference = largest(logits, found.logits) / scale;
  console.log([runtime, name, difference.toExponential(1), largest(pixels, found.pixels).toFixed(2),
    mean(pixels, found.pixels).toFixed(4), mean(pixels, found.drawn).toFixed(2),
    (largest(logits, found.other) / scale).toExponential(1), found.milliseconds.map(Math.round).join(' + ')].join(' | '));
  assert.equal(best(found.logits)[0], best(logits)[0], name);
  assert.ok(difference < TOLERANCE, `${name}: ${difference}`);
}

const page = await open();
const runtimes = await page.locator('#runtime option').evaluateAll((all) => all.map((option) => option.value));
console.log('runtime | image | logits | pixels, largest | mean | canvas, mean | canvas, logits | ms');
for (const runtime of runtimes) for (const name of Object.keys(images)) await compare(page, runtime, name);

// What a person sees.
const first = process.env.SHOWN ?? Object.keys(images)[0];
const shown = (p) => p.locator('#classes li span:first-child').allTextContents();
async function choose(p, name = first) {
  await p.setInputFiles('#file', file(name));
  await p.waitForFunction(() => document.querySelector('#classes li') || document.querySelector('#error').textContent);
}
await choose(page);
const expected = best(images[first].logits).slice(0, 5).map((i) => labels[i]);
assert.deepEqual(await shown(page), expected);
await page.selectOption('#runtime', runtimes.at(-1));
await page.waitForFunction(() => document.querySelectorAll('#classes li').length >= 2);
assert.deepEqual(await shown(page), expected);
assert.match(await page.textContent('#times'), /^Preprocessing \d+ ms, model \d+ ms\.$/);

// By keyboard: the file first, then the runtime.
await page.focus('body');
for (const id of ['file', 'runtime']) {
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.id), id);
}
const chooser = page.waitForEvent('filechooser');
await page.keyboard.press('Shift+Tab');
await page.keyboard.press('Enter');
await chooser;

// A file that is dropped, and one that is no image.
async function drop(p, name, bytes) {
  await p.evaluate(([name, bytes]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(bytes), (x) => x.charCodeAt())], name));
    document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }, [name, bytes.toString('base64')]);
}
const message = async (p) => {
  await p.waitForFunction(() => document.querySelector('#error').textContent);
  console.log(`message: ${await p.textContent('#error')}`);
  return p.textContent('#error');
};
const last = Object.keys(images).at(-1);
await drop(page, last, fs.readFileSync(file(last)));
await page.waitForFunction((name) => document.querySelector('#drop img')?.alt === name, last);
assert.deepEqual(await shown(page), best(images[last].logits).slice(0, 5).map((i) => labels[i]));
await drop(page, 'notes.jpg', Buffer.from('no image'));
assert.match(await message(page), /^notes.jpg is no image that this browser can read/);
assert.deepEqual(await shown(page), []);
if (pictures) await page.screenshot({ path: path.join(pictures, 'no-image.png') });
await choose(page); // and it goes on
assert.deepEqual(await shown(page), expected);

// Files that are missing or damaged.
for (const [glob, answer, pattern] of [
  ['**/model.*', { status: 404 }, /^model\.\w+ is missing from the folder of this page \(404\)/],
  ['**/model.*', { body: 'no model' }, /^model\.\w+ does not run in (ONNX Runtime Web|LiteRT.js): /],
  ['**/*.wasm', { status: 404 }, /^model\.\w+ does not run in (ONNX Runtime Web|LiteRT.js): /],
  ['**/page.json', { status: 404 }, /^page.json is missing/],
]) {
  for (const runtime of glob.includes('json') ? [''] : runtimes) {
    const broken = await open({}, (p) => p.route(glob, (route) => route.fulfill(answer)));
    if (runtime) {
      await broken.selectOption('#runtime', runtime);
      await choose(broken);
    }
    assert.match(await message(broken), pattern);
    await broken.close();
  }
}
for (const [name, width, colorScheme] of [['light', 1000, 'light'], ['dark', 1000, 'dark'],
  ['narrow', 360, 'light'], ['narrow-dark', 360, 'dark']]) {
  const p = await open({ viewport: { width, height: 760 }, colorScheme });
  await choose(p);
  await p.waitForFunction(() => document.querySelector('#times').textContent);
  assert.ok(await p.evaluate(() => document.documentElement.scrollWidth <= innerWidth), name); // no scrolling sideways
  if (pictures) await p.screenshot({ path: path.join(pictures, `${name}.png`), fullPage: true });
  await p.close();
}
await browser.close();
console.log('The page answers as the model does.');
