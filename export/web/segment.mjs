// Cuts out what is clicked on: the encoder runs once for an image, the decoder at every click.
import { decode, load, openOnnx } from './files.mjs';
import { resize } from './preprocess.mjs';

const COLOUR = [255, 60, 60, 140]; // of the mask: red, green, blue, opacity
const element = (id) => document.getElementById(id);

/** Resizes the first `rows` and `columns` of a map of `line` columns, linearly and without antialiasing. */
export function resizeMap(values, line, [rows, columns], [height, width]) {
  const axis = (own, side) => Array.from({ length: side }, (_, i) => {
    const centre = Math.max(((i + 0.5) * own) / side - 0.5, 0);
    const first = Math.floor(centre);
    return [first, Math.min(first + 1, own - 1), centre - first];
  });
  const across = axis(columns, width);
  const result = new Float32Array(height * width);
  axis(rows, height).forEach(([top, below, down], y) => {
    across.forEach(([left, right, share], x) => {
      const upper = values[top * line + left] * (1 - share) + values[top * line + right] * share;
      const lower = values[below * line + left] * (1 - share) + values[below * line + right] * share;
      result[y * width + x] = upper * (1 - down) + lower * down;
    });
  });
  return result;
}

let settings, encoder, decoder, scene; // scene: sizes and embeddings of the image

/** Encodes an image `{ data, width, height }` in RGBA, once. */
export async function encode(image, report = () => {}) {
  settings ??= JSON.parse(new TextDecoder().decode(await load('page.json')));
  encoder ??= await openOnnx(await load('encoder.onnx', report));
  decoder ??= await openOnnx(await load('decoder.onnx', report));
  report('Encoding the image…');
  const { size: [rows, columns], mean } = settings;
  const scale = Math.max(rows, columns) / Math.max(image.height, image.width);
  const inner = [image.height, image.width].map((side) => Math.floor(side * scale + 0.5));
  const { values, at } = resize(image, inner, 'bilinear', true);
  const pixels = Float32Array.from({ length: rows * columns * 3 }, (_, i) => mean[i % 3]); // below and to the right
  for (let y = 0; y < inner[0]; y++) {
    for (let x = 0; x < inner[1]; x++) {
      for (let channel = 0; channel < 3; channel++) {
        pixels[(y * columns + x) * 3 + channel] = values[at(y, x) + channel];
      }
    }
  }
  const [maps] = Object.values(await encoder({ pixels: ['float32', pixels, [1, rows, columns, 3]] }));
  scene = { maps, inner, outer: [image.height, image.width] };
}

/** Logits of the mask of points, in the size of the image, and its score. Points are [x, y, label], 1 in and 0 out. */
export async function ask(points) {
  const { maps, inner, outer } = scene;
  const all = [...points.map(([x, y, label]) => [(x * inner[1]) / outer[1], (y * inner[0]) / outer[0], label]),
    [0, 0, -1]]; // no box
  const [rows, columns] = [maps.dims[1] * 4, maps.dims[2] * 4];
  const { masks, scores } = await decoder({
    image_embeddings: ['float32', maps.data, maps.dims],
    points: ['float32', Float32Array.from(all.flatMap(([x, y]) => [x, y])), [1, all.length, 2]],
    labels: ['int32', Int32Array.from(all.map(([, , label]) => label)), [1, all.length]],
    previous_mask: ['float32', new Float32Array(rows * columns), [1, rows, columns]],
    has_previous_mask: ['float32', new Float32Array(1), [1]],
  });
  // One point may mean three things, which are masks 1 to 3; several mean mask 0.
  const asked = points.length > 1 ? [0] : [1, 2, 3];
  const best = asked.reduce((a, b) => (scores.data[b] > scores.data[a] ? b : a));
  const own = masks.data.subarray(best * rows * columns, (best + 1) * rows * columns);
  const whole = resizeMap(own, columns, [rows, columns], settings.size);
  return { logits: resizeMap(whole, settings.size[1], inner, outer), score: scores.data[best] };
}

let points = [];
let turn = 0; // of the last image or click: an older one that ends later is not shown

function clear() {
  points = [];
  turn++;
  element('mask').getContext('2d').clearRect(0, 0, element('mask').width, element('mask').height);
  element('times').textContent = '';
}

async function attempt(work) {
  const mine = ++turn;
  const say = (text) => mine === turn && (element('status').textContent = text);
  element('error').textContent = '';
  try {
    await work(say, () => mine === turn);
  } catch (error) {
    say('');
    if (mine === turn) element('error').textContent = error.message ?? String(error);
  }
}

element('file').onchange = (event) => attempt(async (say) => {
  const [file] = event.target.files;
  if (!file) return;
  scene = null;
  const image = await decode(file, {});
  for (const id of ['image', 'mask']) Object.assign(element(id), { width: image.width, height: image.height });
  element('image').getContext('2d').putImageData(new ImageData(image.data, image.width, image.height), 0, 0);
  points = [];
  element('times').textContent = '';
  const begin = performance.now();
  await encode(image, say);
  say(`Ready: encoded in ${(performance.now() - begin).toFixed(0)} ms. Click on the image.`);
});

element('picture').onclick = (event) => attempt(async (say, isLast) => {
  if (!scene) return;
  const canvas = element('mask');
  const box = canvas.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) / box.width * canvas.width, (event.clientY - box.top) / box.height * canvas.height];
  points.push([Math.floor(x), Math.floor(y), event.shiftKey ? 0 : 1]);
  const begin = performance.now();
  const { logits, score } = await ask(points);
  if (!isLast()) return;
  const context = canvas.getContext('2d');
  const drawn = context.createImageData(canvas.width, canvas.height);
  logits.forEach((logit, i) => logit > 0 && drawn.data.set(COLOUR, 4 * i));
  context.putImageData(drawn, 0, 0);
  for (const [left, top, label] of points) {
    context.fillStyle = label ? 'lime' : 'black';
    context.fillRect(left - 3, top - 3, 7, 7);
  }
  say(`${points.length} ${points.length > 1 ? 'points' : 'point'}, score ${score.toFixed(2)}`);
  element('times').textContent = `Mask in ${(performance.now() - begin).toFixed(0)} ms.`;
});

element('clear').onclick = clear;
element('status').textContent = 'Ready. Choose an image.';
