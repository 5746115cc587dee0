// Search runs in a web worker, and browsers allow none on file:// pages. There, this class takes
// the place of `Worker`: it runs the worker's script in a hidden frame of the same page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const scope = this.frame.contentWindow
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script")
          script.src = address
          script.onload = resolve
          script.onerror = reject
          scope.document.body.append(script)
        })
      // What the worker's script calls.
      scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      scope.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve())
      this.ready = load(url)
    }

    postMessage(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) })
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(event))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
