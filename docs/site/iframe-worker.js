// Browsers start no worker from a file, so a site that is read without a server could not be searched. This is a worker
// in a hidden frame, for the program of the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html>"
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = frame.contentDocument.createElement("script")
          Object.assign(script, { src: source, onload: resolve, onerror: reject })
          frame.contentDocument.head.append(script)
        })
      this.frame = frame
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true })).then(() => {
        const inside = frame.contentWindow
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        inside.importScripts = (...sources) =>
          sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
        return load(address)
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
