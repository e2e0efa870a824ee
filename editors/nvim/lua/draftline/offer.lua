-- One item of the server at its place in a buffer: what of it is left at the cursor, and accepting it or a part.
--
-- Nothing here remembers what was typed: the text between the item's start and the cursor says it.
local api = vim.api
local rpc = require('draftline.rpc')

---@class draftline.Offer
---@field id string?
---@field text string with LF
---@field tail string of the line, behind what the item replaces
local Offer = {}
Offer.__index = Offer

---@return draftline.Offer?
function Offer.new(client, bufnr, item)
  local text = type(item.insertText) == 'table' and item.insertText.value or item.insertText
  local range = item.range
  if type(text) ~= 'string' or text == '' or not range then
    return nil
  end
  local row = range.start.line
  local line = api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1]
  if not line or range['end'].line ~= row then
    return nil
  end
  local told = item.command and item.command.arguments and item.command.arguments[1]
  return setmetatable({
    id = told and told.id,
    client_id = client.id,
    bufnr = bufnr,
    command = item.command,
    text = (text:gsub('\r\n', '\n'):gsub('\r', '\n')),
    crlf = text:find('\r\n', 1, true) ~= nil,
    row = row,
    col = rpc.byte_of(line, range.start.character, client.offset_encoding),
    tail = line:sub(rpc.byte_of(line, range['end'].character, client.offset_encoding) + 1),
    line_count = api.nvim_buf_line_count(bufnr),
    shown = false,
  }, Offer)
end

function Offer:client()
  return vim.lsp.get_client_by_id(self.client_id)
end

---@class draftline.Rest
---@field text string what the cursor has before it when all is accepted
---@field typed string what of the item stands in the buffer
---@field replaces string closers after the cursor that go when the item is accepted

---What is left at the cursor of the current window; nil where the item doesn't fit.
---@return draftline.Rest?
function Offer:rest()
  if api.nvim_get_current_buf() ~= self.bufnr then
    return nil
  end
  local cursor = api.nvim_win_get_cursor(0)
  local row, col = cursor[1] - 1, cursor[2]
  if row < self.row or (row == self.row and col < self.col) then
    return nil
  end
  if api.nvim_buf_line_count(self.bufnr) ~= self.line_count + row - self.row then
    return nil
  end
  local typed = table.concat(api.nvim_buf_get_text(self.bufnr, self.row, self.col, row, col, {}), '\n')
  if #typed >= #self.text or self.text:sub(1, #typed) ~= typed then
    return nil
  end
  local after = api.nvim_get_current_line():sub(col + 1)
  local replaces = after:sub(1, math.max(#after - #self.tail, 0))
  if replaces .. self.tail ~= after or not replaces:find('^[%)%]}>"\'`; \t]*$') then
    return nil
  end
  return { text = self.text:sub(#typed + 1), typed = typed, replaces = replaces, row = row, col = col }
end

function Offer:tell(method, more)
  local client = self:client()
  if client and self.id then
    rpc.notify(client, method, vim.tbl_extend('force', { id = self.id }, more or {}))
  end
end

---Tell that it is on the screen, once.
function Offer:tell_shown()
  if not self.shown then
    self.shown = true
    self:tell('draftline/didShow')
  end
end

local function insert(offer, rest, text, replaced)
  -- A block of its own to undo.
  vim.go.undolevels = vim.go.undolevels
  local lines = vim.split(text, '\n', { plain = true })
  api.nvim_buf_set_text(offer.bufnr, rest.row, rest.col, rest.row, rest.col + #replaced, lines)
  api.nvim_win_set_cursor(0, { rest.row + #lines, (#lines == 1 and rest.col or 0) + #lines[#lines] })
end

local function run_command(offer)
  local client = offer:client()
  if client and offer.command then
    local command = { command = offer.command.command, arguments = offer.command.arguments }
    rpc.request(client, 'workspace/executeCommand', command, function() end, offer.bufnr)
  end
end

---@return boolean whether it fitted
function Offer:accept()
  local rest = self:rest()
  if not rest then
    return false
  end
  insert(self, rest, rest.text, rest.replaces)
  run_command(self)
  return true
end

---The UTF-16 units of a beginning of the item, counted with the document's line ends.
local function units(offer, text)
  local breaks = offer.crlf and select(2, text:gsub('\n', '')) or 0
  return rpc.utf16_length(text) + breaks
end

---Accept the next word or line. The server says where it ends; `done` is called with whether it was inserted and
---whether more is left.
---@param part 'word'|'line'
---@return boolean whether the item fits
function Offer:accept_part(part, done)
  local rest, client = self:rest(), self:client()
  if not rest or not client then
    return false
  end
  local params = { id = self.id, part = part, acceptedLength = units(self, rest.typed) }
  local sent = rpc.request(client, 'draftline/nextPart', params, function(_, result)
    local now = self:rest()
    if type(result) ~= 'table' or not now or now.typed ~= rest.typed then
      return done(false, false)
    end
    local text = result.text:gsub('\r\n', '\n'):gsub('\r', '\n')
    local last = result.rest == ''
    insert(self, now, text, last and now.replaces or '')
    self:tell('draftline/didPartiallyAccept', { acceptedLength = result.acceptedLength })
    if last then
      run_command(self)
    end
    done(true, not last)
  end, self.bufnr)
  return sent ~= nil
end

return Offer
