// Files of a page in a browser: models, images, and the runtime of ONNX.

const MAX_PIXELS = 2 ** 25; // as in keras_vit.data

/** Loads a file of this folder. */
export async function load(name, report = () => {}) {
  const response = await fetch(name).catch(() => ({ status: 'no answer of the server' }));
  if (!response.ok) {
    throw new Error(`${name} is missing from the folder of this page (${response.status}). Write the folder again.`);
  }
  const parts = [];
  const total = Number(response.headers.get('Content-Length'));
  let size = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
    report(`Loading ${name}: ${(size / 1e6).toFixed(0)} of ${(Math.max(size, total) / 1e6).toFixed(0)} MB`);
  }
  return new Blob(parts).arrayBuffer();
}

/** Reads an image as RGBA bytes, turned as its EXIF block says. */
export async function decode(file, { exif_orientation: turn = true }) {
  const options = { imageOrientation: turn ? 'from-image' : 'none', colorSpaceConversion: 'none' };
  const bitmap = await createImageBitmap(file, { ...options, premultiplyAlpha: 'none' }).catch(() => {
    throw new Error(`${file.name} is no image that this browser can read. Choose a JPEG, PNG or WebP file.`);
  });
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) {
    throw new Error(`${file.name} has ${height} x ${width} pixels, more than ${MAX_PIXELS}. Make it smaller.`);
  }
  const context = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

/** Makes, of the bytes of an ONNX file, a function from inputs `{ name: [type, values, shape] }` to outputs. */
export async function openOnnx(bytes) {
  const ort = await import('./onnx/ort.wasm.bundle.min.mjs');
  ort.env.wasm.wasmPaths = new URL('onnx/', location.href).href;
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ['wasm'] });
  return (inputs, outputs) => session.run(Object.fromEntries(
    Object.entries(inputs).map(([name, values]) => [name, new ort.Tensor(...values)])), outputs);
}
