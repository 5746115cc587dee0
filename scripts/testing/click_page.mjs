// Opens the page of export/web/segment.py in Chromium and clicks: `scripts/check-click-page` runs it.
import assert from 'node:assert';
import fs from 'node:fs';
import path from 'node:path';
import { chromium } from 'playwright-core';

const [url, folder, pictures] = process.argv.slice(2);
const answers = JSON.parse(fs.readFileSync(path.join(folder, 'golden.json')));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
console.log(`Chromium ${browser.version()}`);

async function open(before = () => {}) {
  const page = await browser.newPage({ viewport: { width: 900, height: 900 } });
  page.on('pageerror', (error) => assert.fail(error));
  page.on('request', (request) => assert.ok(/^(blob|data):/.test(request.url()) || request.url().startsWith(url)));
  await before(page);
  await page.goto(url);
  await page.waitForFunction(() => document.querySelector('#status').textContent.startsWith('Ready'));
  return page;
}
const says = (page, start) => page.waitForFunction(
  (start) => document.querySelector('#status').textContent.startsWith(start), start);

// What is drawn: where the mask is not transparent, without the squares of the points.
async function clickAndCompare(page, name, { points, score, mask }) {
  await page.setInputFiles('#file', path.join(folder, 'images', name));
  await says(page, 'Ready: encoded');
  const box = await page.locator('#mask').boundingBox();
  assert.deepEqual(box, await page.locator('#image').boundingBox()); // one above the other
  const [width, height] = await page.locator('#mask').evaluate((canvas) => [canvas.width, canvas.height]);
  for (const [index, [x, y, label]] of points.entries()) {
    const position = { x: (x + 0.5) * box.width / width, y: (y + 0.5) * box.height / height };
    await page.locator('#mask').click({ position, modifiers: label ? [] : ['Shift'] });
    await says(page, `${index + 1} point`);
  }
  const drawn = await page.locator('#mask').evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return Array.from({ length: data.length / 4 }, (_, i) => Number(data[4 * i + 3] > 0));
  });
  const expected = Buffer.from(mask, 'base64');
  assert.equal(drawn.length, expected.length);
  const isPoint = (i) => points.some(([x, y]) =>
    Math.abs(i % width - x) <= 4 && Math.abs(Math.floor(i / width) - y) <= 4);
  const differ = drawn.filter((value, i) => value !== expected[i] && !isPoint(i)).length;
  const inside = expected.reduce((sum, value) => sum + value, 0);
  console.log(`${name}: ${points.length} clicks, ${inside} of ${drawn.length} pixels inside, ${differ} differ; ` +
    `${await page.textContent('#status')}; ${await page.textContent('#times')}`);
  assert.ok(inside > 0 && inside < drawn.length && differ <= drawn.length * 1e-4, `${differ} pixels differ`);
  assert.match(await page.textContent('#status'), new RegExp(`score ${score.toFixed(2)}$`));
  if (pictures) await page.screenshot({ path: path.join(pictures, `click-${name}`), fullPage: true });
}

const page = await open();
for (const [name, answer] of Object.entries(answers)) await clickAndCompare(page, name, answer);
await page.click('#clear');
assert.equal(await page.locator('#mask').evaluate((canvas) =>
  canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((x) => x > 0)), false);
await page.setInputFiles('#file', { name: 'notes.png', mimeType: 'image/png', buffer: Buffer.from('no image') });
await page.waitForFunction(() => document.querySelector('#error').textContent);
assert.match(await page.textContent('#error'), /^notes.png is no image that this browser can read/);

for (const [glob, pattern] of [['**/decoder.onnx', /^decoder.onnx is missing from the folder/], ['**/page.json', /^page.json is missing/]]) {
  const broken = await open((p) => p.route(glob, (route) => route.fulfill({ status: 404 })));
  await broken.setInputFiles('#file', path.join(folder, 'images', Object.keys(answers)[0]));
  await broken.waitForFunction(() => document.querySelector('#error').textContent);
  assert.match(await broken.textContent('#error'), pattern);
  await broken.close();
}
await browser.close();
console.log('The page draws the masks of the model.');
