
// The map: points on a canvas, thumbnails where there is room, one image kept with its neighbours.
{
  const map = DATA.map, thumbs = DATA.thumbs, canvas = find("#canvas"), pen = canvas.getContext("2d");
  const total = map.clusters.length, side = thumbs.side, names = thumbs.names, labels = thumbs.labels;
  const card = find("#card"), idle = find("#idle"), tip = find("#tip"), said = find("#said"), mode = find("#colour");
  // As in the rest of the page: characters that control, or turn the text around them, are escaped.
  const unseen = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
  const clean = (text) => text.replace(unseen, (each) => "\\u" + each.codePointAt(0).toString(16).padStart(4, "0"));
  const className = (i) => (labels[i] >= 0 ? clean(thumbs.classes[labels[i]] ?? "") : "");
  const networks = Object.keys(map.places);
  const sprite = new Image();
  sprite.src = getComputedStyle(find("#sprite")).backgroundImage.slice(5, -2);

  let network = find("input[name=network]:checked")?.value ?? networks[0];
  let before = network, share = 1; // the way from one network's places to the other's
  let zoom = 1, shiftX = 0, shiftY = 0, width = 0, height = 0;
  let hovered = -1, kept = -1, only = -1, shown = [], colours = {};
  const X = new Float32Array(total), Y = new Float32Array(total);

  // Images in an order that does not depend on their class, the same each time.
  const order = [...Array(total).keys()].sort((a, b) => Math.sin(97 * a) - Math.sin(97 * b));

  const nearest = (i) => map.nearest[network]?.[i] ?? [];
  const isWrong = (i) => labels[i] >= 0 && nearest(i).filter((j) => labels[j] === labels[i]).length < nearest(i).length / 2;
  const sorted = [...map.distances].sort((a, b) => a - b);
  const ranks = map.distances.map((value) => sorted.indexOf(value) / Math.max(1, total - 1));
  const ramp = ["#fde725", "#7ad151", "#22a884", "#2a788e", "#414487", "#440154"];

  function readColours() {
    const probe = document.body.appendChild(document.createElement("i"));
    const read = (name) => ((probe.style.color = `var(--${name})`), getComputedStyle(probe).color);
    colours = { paper: read("paper"), ink: read("ink"), bad: read("bad"), mute: read("chance") };
    colours.groups = [...Array(10).keys()].map((i) => read(`c${i}`));
    probe.remove();
  }
  function colourOf(i) {
    if (mode.value === "wrong") return isWrong(i) ? colours.bad : colours.mute;
    if (mode.value === "distance") return ramp[Math.min(5, Math.floor(ranks[i] * 6))];
    const group = mode.value === "class" ? labels[i] : map.clusters[i];
    return group >= 0 ? colours.groups[group % 10] : colours.mute;
  }
  const isOff = (i) => only >= 0 && labels[i] !== only;
  const isOut = (i, margin) => X[i] < margin || X[i] > width - margin || Y[i] < margin || Y[i] > height - margin;

  function place() {
    const edge = 28, from = map.places[before], to = map.places[network];
    for (let i = 0; i < total; i++) {
      const x = from[i][0] * (1 - share) + to[i][0] * share, y = from[i][1] * (1 - share) + to[i][1] * share;
      X[i] = width / 2 + shiftX + (x - 0.5) * (width - 2 * edge) * zoom;
      Y[i] = height / 2 + shiftY + (y - 0.5) * (height - 2 * edge) * zoom;
    }
  }
  function drawThumb(i, size) {
    const x = Math.round(X[i] - size / 2), y = Math.round(Y[i] - size / 2);
    pen.fillRect(x - 2, y - 2, size + 4, size + 4);
    if (sprite.complete && sprite.naturalWidth)
      pen.drawImage(sprite, (i % thumbs.columns) * side, Math.floor(i / thumbs.columns) * side, side, side, x, y, size, size);
  }

  // The name of a class stands at the median of its images, if it is free there.
  function findLabels() {
    if (mode.value !== "class" || zoom > 2.5 || share < 1 || kept >= 0) return [];
    const members = {};
    for (let i = 0; i < total; i++) if (labels[i] >= 0 && !isOff(i)) (members[labels[i]] ??= []).push(i);
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    pen.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
    const found = [];
    for (const [label, some] of Object.entries(members).sort((a, b) => b[1].length - a[1].length)) {
      const name = clean(thumbs.classes[label] ?? "").slice(0, 24), half = pen.measureText(name).width / 2 + 6;
      const x = Math.min(width - half, Math.max(half, middle(some.map((i) => X[i])))), y = middle(some.map((i) => Y[i]));
      if (found.every((each) => Math.abs(each.x - x) > each.half + half || Math.abs(each.y - y) > 22))
        found.push({ name, x, y, half, colour: colours.groups[label % 10] });
    }
    return found;
  }
  // Thumbnails on a greedy grid: an image is shown if no other one, and no name, is in its way.
  function chooseShown(size, texts) {
    const cell = size + 6, grid = new Map();
    shown = [];
    for (const i of order) {
      if (isOff(i) || isOut(i, size / 2)) continue;
      if (texts.some((each) => Math.abs(each.x - X[i]) < each.half + size / 2 && Math.abs(each.y - Y[i]) < 11 + size / 2)) continue;
      const column = Math.floor(X[i] / cell), row = Math.floor(Y[i] / cell);
      let free = true;
      for (let a = column - 1; a <= column + 1; a++)
        for (let b = row - 1; b <= row + 1; b++) {
          const other = grid.get(a * 10000 + b);
          if (other !== undefined && Math.abs(X[other] - X[i]) < cell && Math.abs(Y[other] - Y[i]) < cell) free = false;
        }
      if (free) shown.push(i), grid.set(column * 10000 + row, i);
    }
  }
  function draw() {
    place();
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const centre = kept >= 0 ? kept : hovered, radius = Math.min(5, 2 + zoom * 0.6);
    for (const i of order) {
      if (isOut(i, -9)) continue;
      pen.globalAlpha = isOff(i) ? 0.08 : kept >= 0 ? 0.3 : 0.9;
      pen.fillStyle = colourOf(i);
      pen.beginPath();
      pen.arc(X[i], Y[i], radius, 0, 7);
      pen.fill();
    }
    const texts = findLabels(), size = Math.round(Math.min(60, (width < 500 ? 15 : 19) + 5 * zoom));
    shown = [];
    if (share === 1) chooseShown(size, texts);
    pen.globalAlpha = kept >= 0 ? 0.3 : 1;
    for (const i of shown) (pen.fillStyle = colourOf(i)), drawThumb(i, size);
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    for (const { name, x, y, colour } of texts) {
      pen.lineWidth = 4;
      pen.lineJoin = "round";
      pen.strokeStyle = colours.paper;
      pen.strokeText(name, x, y + 5);
      pen.fillStyle = colour;
      pen.fillText(name, x, y + 5);
    }
    if (centre < 0) return;
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1.2;
    for (const j of nearest(centre)) {
      pen.beginPath();
      pen.moveTo(X[centre], Y[centre]);
      pen.lineTo(X[j], Y[j]);
      pen.stroke();
    }
    for (const j of [...nearest(centre)].reverse().concat(centre)) {
      pen.fillStyle = labels[j] === labels[centre] ? colourOf(j) : colours.bad;
      drawThumb(j, Math.max(size, j === centre ? 36 : 26));
    }
  }

  function makeThumb(tag, i, text, isWrong) {
    const part = document.createElement(tag);
    part.className = isWrong ? "th wrong" : "th";
    part.style.setProperty("--x", i % thumbs.columns);
    part.style.setProperty("--y", Math.floor(i / thumbs.columns));
    if (text) (part.title = text), part.setAttribute("aria-label", text);
    return part;
  }
  function makeText(tag, text) {
    const part = document.createElement(tag);
    part.textContent = text;
    part.dir = "auto";
    return part;
  }
  const describe = (i) => (className(i) ? `${className(i)}, ${clean(names[i])}` : clean(names[i]));
  function showCard(i) {
    card.hidden = i < 0;
    idle.hidden = i >= 0;
    card.replaceChildren();
    if (i < 0) return void (said.textContent = "");
    const head = card.appendChild(document.createElement("div")), text = document.createElement("span");
    text.append(makeText("b", className(i) || clean(names[i])), className(i) ? makeText("span", clean(names[i])) : "");
    if (kept === i) text.append(document.createElement("br"), "kept; Escape releases it");
    head.append(makeThumb("span", i), text);
    for (const name of ["trained", "untrained"].filter((each) => map.nearest[each])) {
      const near = map.nearest[name][i], same = near.filter((j) => labels[j] === labels[i]).length;
      card.append(makeText("h3", labels[i] >= 0 ? `${name}: ${same} of ${near.length} nearest are ${className(i)}` : `${name}: the nearest`));
      const list = card.appendChild(document.createElement("ol"));
      for (const j of near) {
        const button = makeThumb("button", j, describe(j), labels[j] !== labels[i]);
        button.type = "button";
        button.addEventListener("click", () => keep(j));
        list.appendChild(document.createElement("li")).append(button);
      }
    }
    said.textContent = `${describe(i)}. Nearest: ${nearest(i).map((j) => className(j) || clean(names[j])).join(", ")}`;
  }
  function keep(i) {
    kept = i;
    showCard(i);
    draw();
  }
  function showTip(i, x, y) {
    tip.hidden = i < 0;
    if (i < 0) return;
    const text = document.createElement("span");
    text.append(makeText("b", className(i)), makeText("span", clean(names[i])));
    tip.replaceChildren(makeThumb("span", i), text);
    tip.style.left = `${Math.max(4, Math.min(x + 16, width - tip.offsetWidth - 6))}px`;
    tip.style.top = `${Math.max(4, y + 16 + tip.offsetHeight > height ? y - tip.offsetHeight - 12 : y + 16)}px`;
  }
  function findAt(x, y) {
    for (const i of shown) if (Math.abs(X[i] - x) < 13 && Math.abs(Y[i] - y) < 13) return i;
    let best = -1, least = 18 * 18;
    for (let i = 0; i < total; i++) {
      const distance = (X[i] - x) ** 2 + (Y[i] - y) ** 2;
      if (distance < least && !isOff(i)) (best = i), (least = distance);
    }
    return best;
  }
  function setZoom(factor, x = width / 2, y = height / 2) {
    const next = Math.min(16, Math.max(1, zoom * factor)), change = next / zoom;
    shiftX = (shiftX + width / 2 - x) * change + x - width / 2;
    shiftY = (shiftY + height / 2 - y) * change + y - height / 2;
    zoom = next;
    if (zoom === 1) shiftX = shiftY = 0;
    // A finger scrolls the page until the map is larger than its frame.
    canvas.parentNode.style.touchAction = zoom > 1 ? "none" : "pan-y";
    draw();
  }
  function bringIntoView(i) {
    place();
    if (isOut(i, 30)) (shiftX += width / 2 - X[i]), (shiftY += height / 2 - Y[i]);
  }

  let drag = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (drag) {
      drag.way += Math.abs(x - drag.x) + Math.abs(y - drag.y);
      (shiftX += x - drag.x), (shiftY += y - drag.y), (drag.x = x), (drag.y = y);
      return draw();
    }
    const i = findAt(x, y);
    showTip(i, x, y);
    if (i === hovered) return;
    hovered = i;
    if (kept < 0) showCard(i), draw();
  });
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = at(event);
    drag = { x, y, way: 0 };
    if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    if (drag && drag.way < 5) {
      const i = findAt(drag.x, drag.y);
      keep(i === kept ? -1 : i);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    hovered = -1;
    if (kept < 0) showCard(-1), draw();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    setZoom(Math.exp(-event.deltaY / 300), ...at(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (way) {
      event.preventDefault();
      if (kept < 0) return keep(shown[0] ?? order[0]);
      let best = kept, least = Infinity;
      for (let i = 0; i < total; i++) {
        const x = X[i] - X[kept], y = Y[i] - Y[kept], along = x * way[0] + y * way[1];
        const cost = along + 2.5 * Math.abs(x * way[1] + y * way[0]);
        if (along > 0.5 && cost < least && !isOff(i)) (best = i), (least = cost);
      }
      bringIntoView(best);
      keep(best);
    } else if (event.key === "Escape") keep(-1);
    else if (event.key === "+" || event.key === "=") setZoom(1.6);
    else if (event.key === "-") setZoom(1 / 1.6);
  });
  for (const button of findAll("[data-zoom]")) button.addEventListener("click", () => setZoom(+button.dataset.zoom));

  for (const input of findAll("input[name=network]"))
    input.addEventListener("change", () => {
      before = network;
      network = input.value;
      const begin = performance.now(), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const step = (now) => {
        const part = still ? 1 : Math.min(1, Math.max(0, now - begin) / 650);
        share = part * part * (3 - 2 * part);
        draw();
        if (part < 1) requestAnimationFrame(step);
        else if (kept >= 0) showCard(kept);
      };
      requestAnimationFrame(step);
    });
  mode.addEventListener("change", () => {
    find("#ramp").hidden = mode.value !== "distance";
    find("#wrong-key").hidden = mode.value !== "wrong";
    draw();
  });
  let match = -1;
  function search(next) {
    const text = find("#find").value.trim().toLowerCase();
    const hits = text ? order.map((_, i) => i).filter((i) => names[i].toLowerCase().includes(text)) : [];
    match = hits.length ? (next ? (match + 1) % hits.length : 0) : -1;
    find("#found").textContent = text ? (hits.length ? `${match + 1} of ${hits.length}; Enter: the next` : "no such name") : "";
    if (match >= 0) bringIntoView(hits[match]);
    keep(match >= 0 ? hits[match] : -1);
  }
  find("#find").addEventListener("input", () => search(false));
  find("#find").addEventListener("keydown", (event) => event.key === "Enter" && search(true));
  for (const button of findAll("[data-class]"))
    button.addEventListener("click", () => {
      only = only === +button.dataset.class ? -1 : +button.dataset.class;
      findAll("[data-class]").forEach((each) => each.setAttribute("aria-pressed", only === +each.dataset.class));
      draw();
    });

  new ResizeObserver(() => {
    ({ width, height } = canvas.getBoundingClientRect());
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    draw();
  }).observe(canvas);
  repaint.push(() => (readColours(), draw()));
  readColours();
  sprite.decode().then(draw, () => {});
}
